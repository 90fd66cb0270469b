"""Every parameter says what it may be: values within its range work, and all others get a sentence."""

import dataclasses
import itertools
import json
import math
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import vitrail
from vitrail import InputError, scenes
from vitrail.fields import Range, hints, options, schema
from vitrail.method import METHODS, parse
from vitrail.metric import METRICS
from vitrail.metric import parse as parse_metric
from vitrail.model import Target
from vitrail.perturb import BASELINES, baseline
from vitrail.spec import Configured

REGISTRIES = {"method": METHODS, "metric": METRICS, "baseline": BASELINES}
READ = {"method": parse, "metric": parse_metric, "baseline": baseline}
EVERYTHING = [pytest.param(kind, name, id=name) for kind, things in REGISTRIES.items() for name in sorted(things)]
every_thing = pytest.mark.parametrize(("kind", "name"), EVERYTHING)

CLASSES = ["top5+worst", "top1", "present", "best_worst"]
"""The words that var's classes may be: the one parameter that is any text to the schema, and checked further."""


def numeric(hint: Any) -> bool:
    inner = [one for option in options(hint) for one in (typing.get_args(option) or (option,))]
    return any(one in (int, float) for one in inner)


def refusal(make: Callable[[], object]) -> str:
    """What is said against something; nothing where it is made."""
    try:
        make()
    except InputError as error:
        return str(error)
    return ""


def roundtrip(kind: str, thing: Configured) -> None:
    again = READ[kind](thing.spec)
    assert again == thing
    assert again.spec == thing.spec
    assert again.config == thing.config


# --------------------------------------------------------------------------------------------------- what they declare


@every_thing
def test_every_parameter_has_a_doc_line(kind: str, name: str) -> None:
    assert [one["name"] for one in schema(REGISTRIES[kind][name]) if not one["doc"]] == []


@every_thing
def test_every_number_has_a_range(kind: str, name: str) -> None:
    cls = REGISTRIES[kind][name]
    known = hints(cls)
    without = [one["name"] for one in schema(cls) if numeric(known[one["name"]]) and "range" not in one]
    assert without == [], "declare them with vitrail.fields.number(default, low=..., high=...)"
    endless = [one["name"] for one in schema(cls) if one.get("length", [0, 0])[1] is None]
    assert endless == [], "say how many there are at most: number(..., most=...)"


@every_thing
def test_defaults_are_within_their_ranges(kind: str, name: str) -> None:
    cls = REGISTRIES[kind][name]
    plain = cls()
    assert cls(**{field.name: getattr(plain, field.name) for field in dataclasses.fields(cls)}) == plain


@pytest.mark.parametrize("kind", REGISTRIES)
def test_the_schema_is_json(kind: str) -> None:
    told = REGISTRIES[kind].schema()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert [one["id"] for one in told] == sorted(REGISTRIES[kind])


def test_a_schema_tells_all_of_a_parameter() -> None:
    told = {one["name"]: one for one in schema(METHODS["mda"])}
    assert told["gamma"] == {
        "name": "gamma",
        "type": ["number"],
        "range": {"low": 0, "high": 1},
        "default": 0.0,
        "doc": "0 for the sparse map, 1 for the dense one; between them a mixture. See `Explanation.with_`.",
        "stage": "render",
        "was": [],
    }
    assert told["baseline"]["type"] == ["baseline"]
    assert told["baseline"]["default"] == "adaptive_blur"
    tis = {one["name"]: one for one in schema(METHODS["tis"])}
    assert tis["keep"]["type"] == ["integer", "number", "array"]
    assert (tis["keep"]["range"], tis["keep"]["whole"]) == ({"above": 0, "high": 1}, {"low": 2, "high": 100_000})
    assert tis["keep"]["length"] == [1, 100]
    blur = {one["name"]: one for one in schema(BASELINES["rise_blur"])}
    assert blur["kernel"]["range"] == {"low": 1, "high": 501, "only": "odd"}


# --------------------------------------------------------------------------------------------------------- within them


def inside(bounds: dict[str, Any], whole: bool) -> st.SearchStrategy[Any]:
    low, high = bounds.get("low", bounds.get("above")), bounds.get("high", bounds.get("below"))
    if not whole:
        return st.floats(low, high, exclude_min="above" in bounds, exclude_max="below" in bounds)
    numbers = st.integers(math.ceil(low), math.floor(high))
    return numbers.filter(lambda n: Range(**bounds).holds(n))


def values(told: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a parameter may be, by its schema alone."""
    found: list[st.SearchStrategy[Any]] = [st.sampled_from(told["choices"])] if "choices" in told else []
    for kind in told["type"]:
        one = [single(inner, told) for inner in (told["items"] if kind == "array" else [kind])]
        low, high = told.get("length", (0, 0))
        found.append(
            st.lists(st.one_of(one), min_size=low, max_size=min(high, low + 3)).map(tuple)
            if kind == "array"
            else one[0]
        )
    return st.one_of(found)


def single(kind: str, told: dict[str, Any]) -> st.SearchStrategy[Any]:
    if kind in ("integer", "number"):
        bounds = told["whole"] if kind == "integer" and "whole" in told else told["range"]
        return inside(bounds, kind == "integer")
    if kind in REGISTRIES:
        return st.sampled_from(sorted(REGISTRIES[kind])).flatmap(
            lambda name: made(kind, name, nested=kind == "baseline")
        )
    words = st.sampled_from(CLASSES if told["name"] == "classes" else ["auto", "a folder", "x(", "5", "None", ""])
    return {"boolean": st.booleans(), "null": st.none(), "string": words}[kind]


@st.composite
def made(draw: st.DrawFn, kind: str, name: str, nested: bool = True) -> Configured:
    """A thing with some parameters drawn; those that go together with another one may be refused."""
    cls = REGISTRIES[kind][name]
    given_ = {}
    for told in schema(cls):
        if (nested or "method" not in told["type"]) and draw(st.booleans()):
            given_[told["name"]] = draw(values(told))
    try:
        found: Configured = cls(**given_)
    except InputError:
        assume(False)
        raise
    return found


SETTINGS = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@every_thing
@SETTINGS
@given(data=st.data())
def test_what_is_within_is_made_and_read_back(kind: str, name: str, data: st.DataObject) -> None:
    thing = data.draw(made(kind, name))
    roundtrip(kind, thing)
    assert dataclasses.replace(thing) == thing


@every_thing
@SETTINGS
@given(data=st.data())
def test_one_parameter_alone_is_taken_or_refused_for_another(kind: str, name: str, data: st.DataObject) -> None:
    """A value within its range is never refused for itself: a sentence speaks of what it goes with."""
    cls = REGISTRIES[kind][name]
    for told in schema(cls):
        said = refusal(lambda told=told: cls(**{told["name"]: data.draw(values(told))}))
        assert f"parameter {told['name']} must be" not in said
        assert f"needs {told['name']} to be" not in said


# --------------------------------------------------------------------------------------------------------- beyond them

STRANGE: list[Any] = [
    *(-(10**30), 10**30, 10**400, -1, 0, 10**18, -(2**63) - 1, 2**63, True, False),
    *(math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.5, 2.5),
    *(
        "",
        "nan",
        "all",
        "ig",
        b"ig",
        None,
        (),
        [],
        (0,),
        (math.nan,),
        ("a",),
        (True,),
        (1,) * 5000,
        [[1]],
        {},
        object(),
    ),
    *((10**30,), (-1.0,), (1, 2), (0, 0), (1e308, 1e308), 1j, range(3), int, len),
]


@every_thing
def test_anything_else_gets_a_sentence(kind: str, name: str) -> None:
    cls = REGISTRIES[kind][name]
    for told, strange in itertools.product(schema(cls), STRANGE):
        said = refusal(lambda told=told, strange=strange: roundtrip(kind, cls(**{told["name"]: strange})))
        assert "\n" not in said
        assert len(said) < 600


@every_thing
@SETTINGS
@given(data=st.data())
def test_what_is_outside_a_range_is_refused(kind: str, name: str, data: st.DataObject) -> None:
    cls = REGISTRIES[kind][name]
    for told in schema(cls):
        if "range" not in told:
            continue
        whole = "integer" in (told["type"] if "array" not in told["type"] else told["items"])
        bounds = Range(**(told["whole"] if whole and "whole" in told else told["range"]))
        numbers = st.integers() if whole else st.floats(allow_nan=True, allow_infinity=True)
        value = data.draw(numbers.filter(lambda n, bounds=bounds: not bounds.holds(n)))
        given_ = value
        if "array" in told["type"]:
            given_ = (value,) * told["length"][0]
        with pytest.raises(InputError, match=rf"\b{told['name']}\b"):
            cls(**{told["name"]: given_})
        spec = f"{name}({told['name']}={given_!r})"
        with pytest.raises(InputError):
            READ[kind](spec)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "ig(steps=1000000)",
            "ig(steps=1000000) would make 1,000,000 forward and backward passes an image; steps must be 1 to 2,000",
        ),
        ("t_attn(steps=1)", "t_attn needs steps to be 2 to 10,000 (both ends of the way), but steps=1 was given"),
        ("rise(masks=10**18)", "rise's parameter masks must be a whole number, but '10**18' was given"),
        (
            "rise(masks=1000000000000000000)",
            "rise(masks=1000000000000000000) would make 1e+18 forward passes an image; masks must be 1 to 100,000",
        ),
        ("rise(keep=1)", "rise needs keep to be above 0, below 1, but keep=1.0 was given"),
        ("atman(suppression=1)", "atman needs suppression to be 0 or more, below 1, but suppression=1.0 was given"),
        (
            "tis(keep=1)",
            "tis needs keep to be above 0, up to 1, or whole, 2 to 100,000 (a share of the tokens, or their number)",
        ),
        ("tis(layers=())", "tis needs layers to be one number or more, but () was given"),
        ("random(seed=" + "9" * 30 + ")", "random needs seed to be"),
        (
            "mda(baseline=adaptive_blur(last=10001))",
            "adaptive_blur(last=10001) would widen the blur, one pass after the other, up to 10,001 pixels; last",
        ),
        (
            "mda(baseline=rise_blur(kernel=4))",
            "rise_blur needs kernel to be an odd number, 1 to 501, but kernel=4 was given",
        ),
        (
            "less_is_more(regions=(2, 2, 2))",
            "less_is_more's parameter regions must be 2 whole numbers in brackets, but (2, 2, 2) was given",
        ),
        (
            "mda(tau=2)",
            "mda needs tau to be 0 to 1 (0 for deletion alone, 1 for insertion alone), but tau=2.0 was given",
        ),
    ],
)
def test_the_sentences(spec: str, sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse(spec)
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**63 - 1])
def test_any_seed_of_64_bits_works(seed: int) -> None:
    """Of a method, a baseline and a metric for each generator that numbers are drawn from."""
    view = vitrail.load("demo")
    images = view.preprocess.batch([scenes.make(7).pil])
    for spec in ("random", "rise", "tis", "smoothgrad"):
        few = {"rise": "masks=2, ", "tis": "masks=16, ", "smoothgrad": "samples=1, "}.get(spec, "")
        drawn = [vitrail.explain(view, images, f"{spec}({few}seed={one})").maps for one in (seed, 5)]
        assert not torch.equal(*drawn), "another seed, other numbers"
    fill = baseline(f"uniform_noise(seed={seed})").fill(view, images, Target(torch.tensor([0])))
    assert fill.shape == images.shape
    scores = vitrail.evaluate(view, images, "random", [f"aic(seed={seed}, thresholds=(0.1, 0.5))"])
    assert len(scores.rows) == 1
