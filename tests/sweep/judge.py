"""What a model of the sweep does with every method: works, refused, wrong or crash; and how "wrong" is found out."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

import vitrail
from vitrail.errors import InputError
from vitrail.method import METHODS, Method, parse
from vitrail.model import Need, View
from vitrail.perturb import PixelCanvas, RemovalCanvas, cell_canvas, grid_labels

Verdict = Literal["works", "refused", "wrong", "crash"]

NAMED: dict[str, tuple[str, ...]] = {
    "gradient": ("saliency", "ixg", "ig(steps=2)", "smoothgrad(samples=1)", "fullgrad", "gbp", "lrp"),
    "cam": (
        *("gradcam", "gradcam++", "xgradcam", "xgradcam+", "hirescam", "layercam", "eigencam", "guided_gradcam"),
        *("scorecam(channels=2)", "ablationcam(channels=2)", "vit_cx(masks=2)"),
    ),
    "attention": (
        *("raw_attention", "rollout", "genatt", "grad_rollout", "att_ixg", "attcam", "attcat", "gradsam", "legrad"),
        *("inflow", "t_attn(steps=2)", "bt_t(steps=2)", "bt_h(steps=2)", "t_attr", "partial_lrp", "atman(grid=2)"),
    ),
    "tokens": ("decompx", "cat", "fullgrad_plus", "plus(gradcam)", "skipplus(decompx)", "lrp(to=tokens)"),
    "block parts": ("globenc", "alti", "attin", "n_res"),
    "removal": ("tis(masks=4)",),
    "masking": (
        *("rise(masks=4)", "occlusion(window=48, stride=48)", "pami(window=48, stride=48)", "lime(samples=4)"),
        *("kernel_shap(samples=3)", "shapley(samples=1, antithetic=False, grid=2)", "hsic(designs=4, grid=2)"),
        *("less_is_more(regions=(1, 2))", "mda(seed=None, cells=2, baseline=zero_norm)"),
    ),
}
"""Group -> methods at cheap settings."""

WRAPPERS = ("var", "random", "aha", "rollout", "plus", "skipplus")
"""They hold another method, or look at no model; some are asked for with a base."""


def group_of(method: Method) -> str:
    """The group of a method that is not named above."""
    groups = {Need.PARTS: "block parts", Need.ATTENTION: "attention", Need.TOKENS: "tokens", Need.FEATURES: "cam"}
    for need, group in groups.items():
        if need in method.requirements():
            return group
    return "gradient" if Need.GRADIENTS in method.requirements() else "masking"


def grouped() -> dict[str, tuple[str, ...]]:
    """The groups with all methods: those that are not named join the group of what they need, as they are."""
    known = {parse(spec).id for specs in NAMED.values() for spec in specs}
    more = [parse(name) for name in sorted(set(METHODS) - {*WRAPPERS} - known)]
    return {group: (*specs, *(one.id for one in more if group_of(one) == group)) for group, specs in NAMED.items()}


GROUPS = grouped()

QUICK = frozenset(
    {"saliency", "lrp", "gradcam", "ablationcam(channels=2)", "raw_attention", "genatt", "rollout", "legrad", "decompx"}
    | {"inflow", "lrp(to=tokens)", "t_attr", "alti", "tis(masks=4)", "rise(masks=4)"}
)
"""One of each kind of reading, for a run in less time."""

READS = {  # group -> the parts of a view it stands on
    "gradient": (),
    "cam": ("place",),
    "attention": ("parts", "place", "attention"),
    "tokens": ("parts", "place"),
    "block parts": ("parts", "place", "attention"),
    "removal": ("parts", "place", "removal"),
    "masking": ("cells",),
}
PATIENCE = 300
"""Seconds after which a single step counts as a crash."""
PROBED = 24
"""Cells that are changed one at a time to see where a model's answer to them lies."""


@dataclass
class Found:
    """What was seen of one model.

    Attributes:
        size: The input's height and width.
        view: What the view says of itself, or why there is none.
        grid: Its native grid.
        depth: Its blocks.
        verdicts: Method -> its verdict and a sentence.
        faults: Part of the view -> what is wrong with it.
    """

    size: tuple[int, int] | None = None
    view: str = ""
    grid: str = ""
    depth: int = 0
    verdicts: dict[str, tuple[Verdict, str]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def of(self, group: str) -> list[tuple[Verdict, str]]:
        """The verdicts of a group's methods."""
        return [self.verdicts[spec] for spec in GROUPS[group] if spec in self.verdicts]

    @property
    def bad(self) -> dict[str, str]:
        """Everything wrong or crashed."""
        return self.faults | {
            spec: f"{verdict}: {why}" for spec, (verdict, why) in self.verdicts.items() if verdict in ("wrong", "crash")
        }


def judge(build: Callable[[], View], quick: bool = False) -> Found:
    """Load a model, check its view, and ask every method for a map; ``quick``: those of `QUICK` alone."""
    found = Found()
    every = [spec for group in GROUPS.values() for spec in group if spec in QUICK or not quick]
    verdict, why, view = _tried(build)
    if view is None:
        if why.startswith("ImportError"):  # the model's own library asks for a package that is not installed
            verdict = "refused"
        found.view = why
        found.verdicts = dict.fromkeys(every, (verdict, why))
        return found
    found.size, found.view, found.depth = view.size, repr(view), view.depth
    found.grid = "{} x {}".format(*view.grid)
    images = pictures(view)
    for part, check in CHECKS.items():
        verdict, why, fault = _tried(lambda check=check: check(view, images))
        if verdict == "crash" or fault:
            found.faults[part] = why if verdict == "crash" else fault
    for group, specs in GROUPS.items():
        broken = [found.faults[part] for part in READS[group] if part in found.faults]
        for spec in (spec for spec in specs if spec in every):
            verdict, why, maps = _tried(lambda spec=spec: vitrail.explain(view, images, spec, [1, 2]).maps)
            if verdict == "works" and not torch.isfinite(maps).all():
                verdict, why = "wrong", "values that are not finite"
            if verdict == "works" and broken:
                verdict, why = "wrong", broken[0]
            found.verdicts[spec] = (verdict, why)
    return found


def pictures(view: View) -> Tensor:
    """Two smooth random model inputs."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.randn(2, 3, 9, 9, generator=generator)
    return torch.nn.functional.interpolate(coarse, view.size, mode="bicubic", align_corners=False)


def _tried(ask: Callable[[], Any]) -> tuple[Verdict, str, Any]:
    try:
        with _patient():
            return "works", "", ask()
    except InputError as error:
        return ("refused" if len(str(error)) > 20 else "crash"), str(error), None
    except Exception as error:  # whatever it is, a user would see it as it is
        return "crash", f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:160]}", None


@contextmanager
def _patient() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"took longer than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --------------------------------------------------------------------------------------------------------- checks


def parts_make_the_model(view: View, images: Tensor) -> str:
    """Embed, encode and head one after another give the model's own answer."""
    if Need.TOKENS not in view.offers:
        return ""
    with torch.no_grad():
        own = view.logits(images)
        states = view.encode(view.embed(images), view.layout(view.size))
        error = float((view.head(states[-1], view.layout(view.size)) - own).abs().max() / own.abs().max())
    return "" if error < 1e-4 else f"the parts give other logits: {error:.1e}"


def cells_lie_where_they_are_drawn(view: View, images: Tensor) -> str:
    """A changed patch of the picture moves the features of its own cell more than patches elsewhere do."""
    if Need.FEATURES not in view.offers:
        return ""
    changed, cells = one_patch_changed(view, images[:1])
    layers: dict[str, Tensor] = {}
    traces = [view.trace(part) for part in torch.cat([images[:1], changed]).split(8)]
    layers["the entry"] = torch.cat([view.spatial(trace.entry.detach(), view.size) for trace in traces])
    if Need.TOKENS in view.offers:
        for i in range(view.depth + 1):
            states = torch.cat([trace.states[i].detach() for trace in traces])
            layers[f"the input of block {i}"] = view.spatial(states, view.size)
    for name, maps in layers.items():
        if maps.shape[2:] != view.grid:
            return f"{name} has a grid of {tuple(maps.shape[2:])}, not {view.grid}"
        error = displacement((maps[1:] - maps[:1]).norm(dim=1), cells)
        if error > 0.5:
            return f"{name} answers to patches elsewhere: {error:.2f} of the distance at random"
    return ""


def one_patch_changed(view: View, image: Tensor) -> tuple[Tensor, Tensor]:
    """(P, 3, H, W) copies of a picture with one cell's pixels replaced, and (P, 2) the row and column of that cell."""
    rows, columns = view.grid
    labels = grid_labels(view.size, view.grid)
    chosen = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(5))[:PROBED]
    other = torch.randn(image.shape, generator=torch.Generator().manual_seed(6)) * 2
    changed = torch.cat([torch.where(labels == cell, other, image) for cell in chosen])
    return changed, torch.stack([chosen // columns, chosen % columns], 1)


def displacement(answers: Tensor, cells: Tensor) -> float:
    """How far a patch's answer lies from it, on average, as a share of what answers at random places would give.

    Args:
        answers: (P, rows, columns), how much each changed patch moves each cell.
        cells: (P, 2), where the patches are.
    """
    columns = answers.shape[2]
    seen = answers.flatten(1)[:, cells[:, 0] * columns + cells[:, 1]].double()  # (patch, cell), the probed cells alone
    if not float(answers.max()) > 0:
        return 0.0  # nothing answers: there is nothing to draw
    if float(seen.max()) <= 1e-5 * float(answers.max()):
        return 1.0  # all answers lie elsewhere
    for _ in range(20):  # loud patches and excitable cells are made equal
        seen = seen / seen.sum(1, keepdim=True).clamp_min(1e-300)
        seen = seen / seen.sum(0, keepdim=True).clamp_min(1e-300)
    away = (cells[:, None] - cells[None]).double().norm(dim=-1)
    strongest = seen.argmax(0)
    return float(away[strongest, torch.arange(len(cells))].mean() / away.mean().clamp_min(1e-9))


def attention_is_between_tokens(view: View, images: Tensor) -> str:
    """One matrix a block, over the layout's tokens, rows summing to one."""
    if Need.ATTENTION not in view.offers:
        return ""
    layout = view.layout(view.size)
    trace = view.trace(images, attention=True)
    if len(trace.attention) != view.depth:
        return f"{len(trace.attention)} attention matrices for {view.depth} blocks"
    for i, attention in enumerate(trace.attention):
        if attention.shape[0] != len(images) or attention.shape[2:] != (layout.tokens, layout.tokens):
            return f"block {i} has attention of {tuple(attention.shape)} for {layout.tokens} tokens"
        if (attention.sum(-1) - 1).abs().max() > 1e-3 or attention.min() < 0:
            return f"the rows of block {i} do not sum to one"
    return ""


def removal_removes(view: View, images: Tensor) -> str:
    """With all patches kept the answer is the model's; what is taken away, whatever it was, leaves nothing behind."""
    if Need.TOKENS not in view.offers:
        return ""
    try:
        canvas = RemovalCanvas(view, images)
        which = torch.arange(2)
        shown = torch.rand(2, canvas.cells, generator=torch.Generator().manual_seed(1)) < 0.6
        with torch.no_grad():
            own, whole = view.logits(images), canvas.logits(which, torch.ones_like(shown))
            layout = view.layout(view.size)
            tokens = view.embed(images)
            away = torch.cat([shown.new_zeros(2, layout.prefix), ~shown], 1)[..., None]
            left, same = (
                view.respond(x, shown, layout) for x in (tokens, torch.where(away, tokens.flip(1) * 2, tokens))
            )
    except InputError:
        return ""  # refused: nothing is wrong
    scale = own.abs().max()
    if (whole - own).abs().max() > 1e-3 * scale:
        return "with all patches kept, the answer is another"
    return "" if (left - same).abs().max() <= 1e-3 * scale else "patches taken away still change the answer"


def hidden_cells_are_hidden(view: View, images: Tensor) -> str:
    """Cells hidden in embedding space, where that is done, give the answer of hidden pixels."""
    canvas = cell_canvas(view, images, [torch.zeros_like(images)])
    pixels = PixelCanvas(view, images, [torch.zeros_like(images)], grid_labels(view.size, view.grid))
    shown = torch.rand(2, canvas.cells, generator=torch.Generator().manual_seed(1)) < 0.6
    with torch.no_grad():
        a, b = (x.logits(torch.arange(2), shown) for x in (canvas, pixels))
    return "" if (a - b).abs().max() <= 1e-3 * b.abs().max() else "hidden cells are not hidden pixels"


CHECKS: dict[str, Callable[[View, Tensor], str]] = {
    "parts": parts_make_the_model,
    "place": cells_lie_where_they_are_drawn,
    "attention": attention_is_between_tokens,
    "removal": removal_removes,
    "cells": hidden_cells_are_hidden,
}
"""Part of a view -> a check that gives a fault in words, or nothing."""
