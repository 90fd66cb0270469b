"""Spec strings are read, never run: what is written comes back, and nonsense gets a sentence."""

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitrail import InputError
from vitrail.method import METHODS, Batch, GradCAM, InputXGradient, IntegratedGradients, Method, SmoothGrad, parse
from vitrail.method.base import describe, methods, register
from vitrail.model import View
from vitrail.perturb import BASELINES, Baseline
from vitrail.spec import Configured

REGISTERED = sorted(METHODS)
"""As they are without the throwaway ones of this file."""


class _Nothing(Method):
    def maps(self, view: View, batch: Batch) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class PlusPlus(_Nothing):
    """A method whose name is no Python name."""

    power: int = 2


BASE = GradCAM()


@dataclass(frozen=True)
class Everything(_Nothing):
    """One parameter of every kind."""

    layers: tuple[int, ...] = (1, 2)
    classes: str = "top5"
    share: float = 0.5
    limit: int | None = None
    mode: Literal["soft", "hard", 3] = "soft"
    flag: bool = False
    base: Method = BASE
    words: tuple[str, ...] = ()


@pytest.fixture(autouse=True, scope="module")
def throwaway() -> Iterator[None]:
    """Two more methods, for the tests of this file only."""
    facts: dict[str, Any] = {"paper": "none", "cost": "none", "needs": ()}
    register("zzcam++", **facts)(PlusPlus)
    register("zzall", **facts)(Everything)
    try:
        yield
    finally:
        del METHODS["zzcam++"], METHODS["zzall"]


# ----------------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", REGISTERED)
def test_a_name_is_the_method_with_its_defaults(name: str) -> None:
    method = parse(name)
    assert method == METHODS[name]()
    assert type(method) is METHODS[name]
    assert parse(method.spec) == method
    assert parse(f" {name} ( ) ") == method


C = TypeVar("C", bound=Configured)

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a parameter's type."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return st.sampled_from(options)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, options))
    if origin is tuple:
        return st.lists(values(options[0]), max_size=3).map(tuple)
    if isinstance(hint, type) and issubclass(hint, Method):
        return st.sampled_from(REGISTERED).flatmap(lambda name: made(METHODS[name], nested=False))
    if isinstance(hint, type) and issubclass(hint, Baseline):
        return st.sampled_from(sorted(BASELINES)).flatmap(lambda name: made(BASELINES[name]))
    simple = {
        int: st.integers(-3, 10**6),
        float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 3).map(float),
        bool: st.booleans(),
        str: st.sampled_from(["top5", "top5+worst", "a b", "5", "None", "class", "don't", "", "x(", "a,b"]) | WORDS,
        type(None): st.none(),
    }
    return simple[hint]


@st.composite
def made(draw: st.DrawFn, cls: type[C], nested: bool = True) -> C:
    """A method or a baseline with random parameters that it accepts."""
    hints = typing.get_type_hints(cls)
    given_: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        options = (hints[field.name], *typing.get_args(hints[field.name]))
        is_method = any(isinstance(option, type) and issubclass(option, Method) for option in options)
        if (nested or not is_method) and draw(st.booleans()):
            given_[field.name] = draw(values(hints[field.name]))
    try:
        return cls(**given_)
    except InputError:  # the method's own limits
        assume(False)
        raise


@pytest.mark.parametrize("name", [*REGISTERED, "zzcam++", "zzall"])
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_written_is_read_back(name: str, data: st.DataObject) -> None:
    method = data.draw(made(METHODS[name]))
    again = parse(method.spec)
    assert again == method
    assert again.spec == method.spec
    assert again.config == method.config


def test_only_what_differs_from_the_defaults_is_written() -> None:
    assert IntegratedGradients().spec == "ig"
    assert IntegratedGradients(steps=20).spec == "ig(steps=20)"
    assert SmoothGrad(InputXGradient(), samples=3).spec == "smoothgrad(ixg, samples=3)"
    assert parse("ig(50, true)").spec == "ig"


def test_nesting() -> None:
    assert parse("smoothgrad(ixg, samples=3)") == SmoothGrad(InputXGradient(), samples=3)
    deep = parse("smoothgrad(smoothgrad(ig(steps=4, gradient=frozen), 2), samples=3)")
    assert deep == SmoothGrad(SmoothGrad(IntegratedGradients(4, "frozen"), 2), 3)
    assert parse(deep.spec) == deep
    assert parse("smoothgrad(base=gradcam)") == SmoothGrad(GradCAM())
    assert deep.config["base"]["base"] == {"id": "ig", "steps": 4, "gradient": "frozen"}


def test_positions_and_names_mean_the_same() -> None:
    assert parse("ig(7, frozen)") == parse("ig(gradient=frozen, steps=7)") == IntegratedGradients(7, "frozen")


def test_lists_and_tuples() -> None:
    for text in ("[3, 4]", "(3, 4)", "(3, 4,)"):
        assert parse(f"zzall(layers={text})") == Everything(layers=(3, 4))
    assert parse("zzall(())") == Everything(layers=())
    assert parse("zzall(words=('a', 'b c'))") == Everything(words=("a", "b c"))
    assert parse("zzall(words=[top5+worst, a])") == Everything(words=("top5+worst", "a"))


def test_words_need_no_quotes() -> None:
    for text in ("frozen", "'frozen'", '"frozen"'):
        assert parse(f"ig(gradient={text})") == IntegratedGradients(gradient="frozen")
    for text in ("top5+worst", "top5 + worst", "'top5+worst'"):
        assert parse(f"zzall(classes={text})") == Everything(classes="top5+worst")
    assert Everything(classes="top5+worst").spec == "zzall(classes=top5+worst)"
    assert Everything(classes="a cat").spec == "zzall(classes='a cat')"


def test_numbers_none_and_truth() -> None:
    method = parse("zzall(share=1, limit=None, mode=3, flag=True)")
    assert method == Everything(share=1.0, mode=3, flag=True)
    assert type(vars(method)["share"]) is float, "a whole number is a number"
    assert parse("zzall(share=-2.5e-3, limit=-4)") == Everything(share=-0.0025, limit=-4)


def test_names_with_a_plus() -> None:
    assert parse("zzcam++") == parse(" zzcam++ ") == parse("zzcam++()") == PlusPlus()
    assert PlusPlus(power=3).spec == "zzcam++(power=3)"
    assert parse("zzcam++(power=3)") == parse("zzcam++ (3)") == PlusPlus(3)
    assert parse("smoothgrad(zzcam++, samples=2)") == SmoothGrad(PlusPlus(), 2)
    assert parse("smoothgrad(zzcam++(3), 2)") == SmoothGrad(PlusPlus(3), 2)
    with pytest.raises(InputError, match=r"no method called 'zzcam\+'; did you mean zzcam\+\+"):
        parse("zzcam+")
    assert methods("zz*") == ["zzall", "zzcam++"]


def test_a_method_is_itself() -> None:
    method = SmoothGrad(samples=2)
    assert parse(method) is method


def test_two_methods_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="two methods are called ig"):
        register("ig", paper="", cost="")(PlusPlus)
    assert METHODS["ig"] is IntegratedGradients


@pytest.mark.parametrize("name", REGISTERED)
def test_every_method_describes_itself(name: str) -> None:
    facts = describe(name)
    assert facts["id"] == name
    assert all(facts[key] for key in ("family", "paper", "cost", "summary"))
    assert list(facts["params"]) == [field.name for field in dataclasses.fields(METHODS[name])]


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("gradcm", r"no method called 'gradcm'; did you mean gradcam"),
        ("smoothgrad(ixgg)", r"no method called 'ixgg'; did you mean ixg"),
        ("qqqqqqqqqqqq", r"no method called 'qqqqqqqqqqqq'; see 'vitrail methods'"),
        ("ig(step=20)", r"ig has no parameter called 'step'; did you mean steps\?"),
        ("ig(qqq=20)", r"ig has no parameter called 'qqq'; it has steps, gradient"),
        ("ig(steps=many)", r"ig's parameter steps must be a whole number, but 'many' was given"),
        ("ig(steps=2.5)", r"steps must be a whole number, but 2.5 was given"),
        ("ig(steps=True)", r"steps must be a whole number, but True was given"),
        ("ig(gradient=false)", r"gradient must be 'true' or 'frozen', but 'false' was given"),
        ("gradcam(relu=1)", r"relu must be True or False, but 1 was given"),
        ("smoothgrad(noise=loud)", r"noise must be a number, but 'loud' was given"),
        ("smoothgrad(noise=1e999)", r"noise must be a number, but inf was given"),
        ("smoothgrad(noise=1" + "0" * 400 + ")", r"noise must be a number, but 1000"),
        ("smoothgrad(3)", r"smoothgrad's parameter base must be a method, but 3 was given"),
        ("zzall(limit=few)", r"limit must be a whole number or None, but 'few' was given"),
        ("zzall(layers=(1, x))", r"layers must be"),
        ("zzall(layers=3)", r"layers must be"),
        ("ig(20, steps=30)", r"ig is given its parameter steps twice in 'ig\(20, steps=30\)'"),
        ("ig(1, true, 3)", r"ig takes at most 2 parameters, but 'ig\(1, true, 3\)' gives 3"),
        ("ig(steps=0)", r"ig needs steps to be 1 to 2,000, but steps=0"),
        ("smoothgrad(ig(steps=0))", r"ig needs steps to be 1 to 2,000, but steps=0"),
    ],
)
def test_mistakes_get_a_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refusal:
        parse(spec)
    assert "\n" not in str(refusal.value)


GARBAGE = [
    "",
    "   ",
    "ig(",
    "ig)",
    "ig(steps=)",
    "ig(steps=1",
    "ig(steps=1, steps=2)",
    "ig,",
    "ig ixg",
    "ig; ixg",
    "ig.steps",
    "ig[0]",
    "ig(1)(2)",
    "'ig'",
    "1",
    "1+1",
    "+",
    "++",
    "lambda: 1",
    "ig(lambda: 1)",
    "ig(*[1])",
    "ig(**{'steps': 1})",
    "ig(steps:=3)",
    "ig(steps={[]: 1})",
    "ig(steps={{}})",
    "ig(steps=[i for i in range(9)])",
    "ig(steps=10**9)",
    "ig\x00",
    "ig\nixg",
    "import os",
    "smoothgrad(" * 3000,
    "smoothgrad(" * 150 + "nothing" + ")" * 150,
    "ig(steps=" + "-" * 900 + "1)",
    "ig(steps=" + "9" * 5000 + "e)",
    "ig(" + "(" * 150 + ")" * 150 + ")",
]


@pytest.mark.parametrize("spec", GARBAGE, ids=lambda spec: repr(spec[:24]))
def test_garbage_is_refused(spec: str) -> None:
    with pytest.raises(InputError):
        parse(spec)


@pytest.mark.parametrize("spec", [None, 3, b"ig", ["ig"], IntegratedGradients])
def test_what_is_no_spec_is_refused(spec: Any) -> None:
    with pytest.raises(InputError, match="a method must be a spec string such as"):
        parse(spec)


@pytest.mark.parametrize(
    "form",
    ["{}", "{}()", "ig({})", "ig(steps={})", "smoothgrad({})", "zzall(layers=({},))", "ig(steps=[{}])", "{}(steps=1)"],
)
def test_nothing_is_evaluated(form: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    attack = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    with pytest.raises(InputError):
        parse(form.format(attack))
    assert not trace.exists()
    eval(attack)
    assert trace.exists(), "the trap works"


def test_a_call_given_as_a_word_stays_a_word() -> None:
    assert parse("zzall(classes=__import__('os'))") == Everything(classes="__import__('os')")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([*"ig(x,=+)['1. \\\"{:*-", "steps", "smoothgrad", "ixg", "frozen"])).map("".join))
def test_any_text_is_a_method_or_an_input_error(text: str) -> None:
    try:
        method = parse(text)
    except InputError:
        return
    assert parse(method.spec) == method
