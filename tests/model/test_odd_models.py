"""Models that are odd: those that only answer are explained all the same, and others refused in a sentence."""

import copy
import pickle
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.odd import BASES, CHANGING, GRADIENTLESS, SIZE, Around, cnn, vit
from helpers.small import quick
from helpers.state import state_of
from helpers.zoo import pictures
from vitrail import Explanation, InputError, evaluate, explain
from vitrail.front import chosen
from vitrail.method import METHODS, Batch, explain_batch
from vitrail.metric import METRICS
from vitrail.model import Need, View, load

every_base = pytest.mark.parametrize("base", BASES)
every_gradientless = pytest.mark.parametrize("kind", GRADIENTLESS)


@cache
def usual_view(base: str) -> View:
    return load(BASES[base](), size=SIZE)


@cache
def odd_view(kind: str, base: str) -> View:
    return load(GRADIENTLESS[kind](BASES[base]), size=SIZE)


@cache
def usual(base: str, spec: str) -> Explanation:
    return explain(usual_view(base), pictures(2, SIZE), spec, target=[1, 2])


# ---------------------------------------------------------------------------------------------------- no gradients

ANSWERS_ALONE = [
    *("rise(masks=8)", "occlusion(window=16, stride=16)", "lime(samples=6)", "shapley(samples=1, grid=2)"),
    *("mda(seed=None, cells=2, baseline=zero_norm)", "kernel_shap(samples=4)", "hsic(designs=4, grid=2)", "random"),
]


@every_base
@every_gradientless
def test_what_needs_answers_alone_works(kind: str, base: str) -> None:
    """And gives what it gives on the same model with gradients, where the numbers are the same."""
    odd = odd_view(kind, base)
    assert not odd.differentiable
    for spec in ANSWERS_ALONE:
        found, expected = explain(odd, pictures(2, SIZE), spec, target=[1, 2]), usual(base, spec)
        assert torch.isfinite(found.maps).all()
        assert found.maps.flatten(1).std(1).min() > 0, spec
        if kind == "quantised":
            continue
        assert torch.allclose(found.logits, expected.logits, atol=1e-6)
        if found.maps.shape == expected.maps.shape:  # a function has no grid of its own
            assert torch.allclose(found.maps, expected.maps, rtol=1e-3, atol=1e-5), spec


@pytest.mark.parametrize("kind", sorted(set(GRADIENTLESS) - {"quantised", "a function"}))
def test_tokens_are_found_without_gradients(kind: str) -> None:
    odd, like = odd_view(kind, "vit"), usual_view("vit")
    assert (odd.depth, odd.grid, odd.readout) == (like.depth, like.grid, like.readout)
    assert odd.offers == like.offers - {Need.GRADIENTS}
    for spec in ("tis(masks=8)", "rollout", "atman(grid=2)", "scorecam(channels=3)", "alti"):
        found = explain(odd, pictures(2, SIZE), spec, target=[1, 2])
        assert torch.allclose(found.maps, usual("vit", spec).maps, rtol=1e-3, atol=1e-6), spec


@pytest.mark.parametrize("options", [{}, {"global_pool": "avg"}, {"global_pool": "map", "class_token": False}])
def test_what_the_head_reads_is_found_without_gradients(options: dict[str, Any]) -> None:
    build = partial(vit, **options)
    assert load(GRADIENTLESS["runs under no_grad"](build), size=SIZE).readout == load(build(), size=SIZE).readout


@every_base
@every_gradientless
def test_what_needs_gradients_is_refused(kind: str, base: str) -> None:
    view, images = odd_view(kind, base), pictures(1, SIZE)
    assert not view.offers & {Need.GRADIENTS, Need.RELU}
    for spec in ("saliency", "ig(steps=2)", "lrp", "fullgrad", "gbp", "smoothgrad(samples=2)", "gradcam"):
        if Need.FEATURES in view.offers or spec != "gradcam":
            with pytest.raises(InputError, match=r"gives no gradient.*; use .*rise"):
                explain(view, images, spec)


@every_base
@every_gradientless
def test_auto_chooses_what_works(kind: str, base: str) -> None:
    assert chosen(odd_view(kind, base)) == "rise"


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"aha"}))
def test_methods_say_that_they_ask_for_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that do not are the very ones that a model without gradients is offered."""
    method, asked = quick(name, SIZE), []
    view = usual_view("vit" if method.requirements() <= usual_view("vit").offers else "cnn")
    assert method.requirements() <= view.offers  # this looks at the model, with gradients too
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kwargs: (asked.append(1), grad(*args, **kwargs))[1])
    explain_batch(view, method, [Batch(pictures(1, SIZE))])
    assert bool(asked) == (Need.GRADIENTS in method.requirements())


def test_a_target_that_is_detached_is_refused() -> None:
    with pytest.raises(InputError, match="have no gradient"):
        explain(load(cnn(), size=SIZE), pictures(1, SIZE), "saliency", lambda logits: logits[:, 1].detach())


@pytest.mark.parametrize(
    "cut", [Tensor.detach, lambda images: torch.from_numpy(images.numpy())], ids=["detach", "numpy"]
)
def test_a_model_that_cuts_its_pixels_off(cut: Callable[[Tensor], Tensor]) -> None:
    """Its tokens still have gradients; its pixels have none, which a sentence says."""
    view = load(Around(vit(), lambda body, images: body(cut(images))), size=SIZE)
    found = explain(view, pictures(2, SIZE), "decompx", target=[1, 2])
    assert torch.allclose(found.maps, usual("vit", "decompx").maps, rtol=1e-4, atol=1e-6)
    for spec in ("saliency", "lrp", "fullgrad"):
        with pytest.raises(InputError, match="gives no gradient"):
            explain(view, pictures(1, SIZE), spec)


SHORT = {"cascading_randomisation": "(steps=1)", "mprt_smooth": "(steps=1, samples=2)"}


@pytest.mark.parametrize("kind", ["made in inference mode", "quantised"])
def test_metrics_need_answers_alone(kind: str) -> None:
    """All that can be measured without masks, true classes and tokens."""
    asked = [name + SHORT.get(name, "") for name, metric in METRICS.items() if not metric.needs & {"masks", "labels"}]
    odd, images = odd_view(kind, "cnn"), pictures(2, SIZE)
    measured = 0
    for metric in asked:
        try:
            evaluate(usual_view("cnn"), images, "random", metric)
        except InputError:
            continue
        assert evaluate(odd, images, "rise(masks=4)", metric).rows
        measured += 1
    assert measured > 20


@every_base
@every_gradientless
def test_curves_need_answers_alone(kind: str, base: str) -> None:
    maps = torch.rand(2, *SIZE, generator=torch.Generator().manual_seed(0))
    metrics = ["insertion(step=256)", "deletion(step=256)", "sparseness"]
    odd, like = (evaluate(view, pictures(2, SIZE), maps, metrics) for view in (odd_view(kind, base), usual_view(base)))
    for one, other in zip(odd.rows, like.rows):
        assert one.value == pytest.approx(other.value, abs=1e-2 if kind == "quantised" else 1e-4), one.metric


# ------------------------------------------------------------------------------------------------------ odd answers

STRANGE: dict[str, tuple[Callable[[nn.Module, Tensor], Any], str]] = {
    "whole numbers": (lambda body, x: (body(x) * 100).long(), r"answered a tensor of torch\.int64"),
    "booleans": (lambda body, x: body(x) > 0, r"answered a tensor of torch\.bool"),
    "complex": (lambda body, x: body(x) + 0j, r"answered a tensor of torch\.complex64"),
    "sparse": (lambda body, x: body(x).to_sparse(), r"answered a tensor of torch\.sparse_coo"),
    "no classes": (lambda body, x: body(x)[:, :0], r"answered \(2, 0\)"),
    "one axis": (lambda body, x: body(x)[:, 0], r"answered \(2,\)"),
    "three axes": (lambda body, x: body(x)[:, None], r"answered \(2, 1, \d\)"),
    "an empty tuple": (lambda body, x: (), "answered an empty tuple"),
    "nothing": (lambda body, x: None, "answered NoneType"),
    "a dict": (lambda body, x: {"logits": body(x)}, "answered dict"),
    "an array": (lambda body, x: body(x).detach().numpy(), "answered ndarray"),
    "one row for all": (lambda body, x: body(x).mean(0, keepdim=True), r"answered \(1, \d\) to 2 pictures"),
    "two rows each": (lambda body, x: body(x).repeat(2, 1), r"answered \(4, \d\) to 2 pictures"),
    "a missing key": (lambda body, x: {}["logits"], r"could not be run on a \(1, 3, 32, 32\).*KeyError"),
    "a missing attribute": (lambda body, x: x.logits, r"could not be run on a \(1, 3, 32, 32\).*AttributeError"),
    "a missing place": (lambda body, x: [][0], r"could not be run on a \(1, 3, 32, 32\).*IndexError"),
    "one picture only": (
        lambda body, x: body(x.view(3, *SIZE)[None]),
        r"could be run on one picture, but not on a \(2, 3, 32, 32\) input",
    ),
}


@every_base
@pytest.mark.parametrize("kind", STRANGE)
def test_answers_that_are_no_logits(kind: str, base: str) -> None:
    run, words = STRANGE[kind]
    model = Around(BASES[base](), run)
    before = state_of(model)
    with pytest.raises(InputError, match=words):
        load(model, size=SIZE)
    assert state_of(model) == before


def test_a_model_that_changes_the_batch_later() -> None:
    """Two pictures go through, more come out as one row: said when it happens."""
    model = Around(cnn(), lambda body, x: body(x) if len(x) < 3 else body(x).mean(0, keepdim=True))
    view = load(model, size=SIZE)
    with pytest.raises(InputError, match="answered 1 rows to 3 pictures"):
        explain(view, pictures(3, SIZE), "saliency")
    with pytest.raises(InputError, match="answered 1 rows to"):
        explain(view, pictures(1, SIZE), "rise(masks=8)")


# ------------------------------------------------------------------------------------------------ models not there yet


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(5))


def lazy_statistics() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyBatchNorm2d(affine=False), nn.Flatten(), nn.Linear(3600, 2))


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return vit()


def half_on_meta() -> nn.Module:
    model = vit()
    model.head.to("meta")
    return model


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lazy, "is not made yet: 0.weight gets its shape when the model runs"),
        (lazy_statistics, "is not made yet: 1.running_mean"),
        (on_meta, "hold no numbers: cls_token is on the meta device"),
        (half_on_meta, "hold no numbers: head.weight is on the meta device"),
    ],
)
def test_weights_that_are_not_there(build: Callable[[], nn.Module], words: str, tmp_path: Any) -> None:
    torch.save(vit().state_dict(), tmp_path / "weights.pt")
    for options in ({}, {"checkpoint": tmp_path / "weights.pt"}):
        with pytest.raises(InputError, match=words):
            load(build(), size=SIZE, **options)
    made = lazy()
    made(torch.zeros(1, 3, *SIZE))
    assert load(made.eval(), size=SIZE).num_classes == 5


def test_the_meta_device_is_none() -> None:
    for model in ("demo", vit()):
        with pytest.raises(InputError, match="device 'meta' holds no numbers"):
            load(model, device="meta")


@pytest.mark.parametrize("default", ["meta"])
def test_a_default_device_set_by_the_caller(default: str) -> None:
    images, methods = pictures(2, SIZE), ["rise(masks=4)", "decompx", "tis(masks=4)", "t_attr", "alti"]
    view = load(vit(), size=SIZE)
    expected = [explain(view, images, spec).maps for spec in methods]
    scores = evaluate(view, images, methods[:2], ["insertion", "deletion"])
    model = vit()
    with torch.device(default):
        for found in (load("demo", device="cpu"), load("resnet18", pretrained=False, device="cpu")):
            assert found.device == torch.device("cpu")
        view = load(model, size=SIZE)
        again = [explain(view, images, spec).maps for spec in methods]
        judged = evaluate(view, images, methods[:2], ["insertion", "deletion"])
        assert torch.empty(0).device.type == default
    assert all(torch.equal(one, other) for one, other in zip(again, expected))
    assert [row.value for row in judged.rows] == [row.value for row in scores.rows]


# -------------------------------------------------------------------------------------------------------- as it was


@every_base
@pytest.mark.parametrize("kind", CHANGING)
def test_models_that_change_themselves_come_back_as_they_were(kind: str, base: str) -> None:
    model, images = CHANGING[kind](BASES[base]), pictures(1, SIZE)
    before = state_of(model)
    view = load(model, size=SIZE)
    assert state_of(model) == before, "looking"
    for spec in ("rise(masks=4)", "saliency"):
        if Need.GRADIENTS in view.offers or spec != "saliency":
            explain(view, images, spec)
            assert state_of(model) == before, spec
    evaluate(view, images, "rise(masks=4)", ["insertion", "deletion"])
    assert state_of(model) == before, "judging"
    with pytest.raises(KeyError), view.still():
        raise KeyError(view.logits(images))
    assert state_of(model) == before, "an exception"


def test_what_the_user_counts_is_kept() -> None:
    """Only our own calls are taken back."""
    model = CHANGING["counts"](cnn)
    view = load(model, size=SIZE)
    model(pictures(1, SIZE))
    explain(view, pictures(1, SIZE), "rise(masks=4)")
    model(pictures(1, SIZE))
    assert model.calls == 2


def test_a_table_for_another_size_stays() -> None:
    """A buffer of another shape is not counted with, and the attribute beside it would not fit the old one."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.side = cnn(), 0
            self.register_buffer("table", torch.zeros(0))

        def forward(self, images: Tensor) -> Tensor:
            if images.shape[-1] != self.side:
                self.side = images.shape[-1]
                self.table = torch.ones(self.side)
            return self.body(images * self.table[: self.side])

    model = Table()
    view = load(model, size=SIZE)
    assert len(model.table) == model.side == 32
    view.logits(pictures(1, (32, 64)))
    assert len(model.table) == model.side == 64
    assert model(pictures(1, (32, 64))).shape == (1, 5)


# ----------------------------------------------------------------------------------------------------------- copies


@every_base
@pytest.mark.parametrize("how", [copy.deepcopy, lambda view: pickle.loads(pickle.dumps(view))], ids=["copy", "pickle"])
def test_copies_of_a_view(how: Callable[[View], View], base: str) -> None:
    view, images = load(BASES[base](), size=SIZE), pictures(2, SIZE)
    specs = ["rise(masks=4)", "gradcam"] + (["alti", "tis(masks=4)"] if base == "vit" else [])
    expected = [explain(view, images, spec) for spec in specs]
    assert view.activations.rectifiers or view.fingerprint()
    view.precision = "bf16"
    other = how(view)
    assert (other.precision, other.name, other.num_classes) == ("bf16", view.name, view.num_classes)
    assert other.model is not view.model
    assert other._lock is not view._lock
    assert other.meter.forwards == 0
    with torch.no_grad():
        next(other.model.parameters()).mul_(2)
    assert other.fingerprint() != view.fingerprint(), "the weights are its own"
    with torch.no_grad():
        next(other.model.parameters()).div_(2)
    assert other.fingerprint() == view.fingerprint()
    view.precision = "fp32"
    with view.still():  # a lock of its own
        for spec, known in zip(specs, expected):
            assert torch.equal(explain(other, images, spec, precision="fp32").maps, known.maps), spec
    before = state_of(other.model)
    other.logits(images)
    assert state_of(other.model) == before


def test_a_copy_made_while_it_is_held() -> None:
    view = load(vit(), size=SIZE)
    images = pictures(1, SIZE)
    with view.still(), view.remembering(images):
        view.trace(images)
        other = copy.deepcopy(view)
        assert view.remembers
    assert not other.remembers
    assert torch.equal(other.logits(images), view.logits(images))


# --------------------------------------------------------------------------------------------------------- compiled


def in_place(model: nn.Module, backend: Any) -> nn.Module:
    model.compile(backend=backend)
    return model


def blocks_in_place(model: nn.Module, backend: Any) -> nn.Module:
    for block in model.blocks:
        block.compile(backend=backend)
    return model


def blocks_wrapped(model: nn.Module, backend: Any) -> nn.Module:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend=backend)
    return model


def wrapped(model: nn.Module, backend: Any) -> nn.Module:
    return torch.compile(model, backend=backend)


@pytest.mark.parametrize("compiled", [in_place, blocks_in_place, blocks_wrapped, wrapped])
def test_compiled_models_are_looked_at_as_they_were_written(compiled: Callable[[nn.Module, Any], nn.Module]) -> None:
    made: list[object] = []

    def backend(graph: Any, _: object) -> Any:
        made.append(graph)
        return graph.forward

    usual, images = load(vit(), size=SIZE), pictures(2, SIZE)
    model = compiled(vit(), backend)
    view = load(model, size=SIZE)
    assert (view.depth, view.grid, view.offers) == (usual.depth, usual.grid, usual.offers)
    for spec in ("saliency", "skipplus(decompx)", "rollout", "tis(masks=4)", "t_attr"):
        assert torch.equal(explain(view, images, spec).maps, explain(usual, images, spec).maps), spec
    assert not made, "nothing was compiled"
    with torch.no_grad():
        model(images)
    assert made, "and it still is compiled for its owner"
