"""Watch a classifier run once, and check that the parts found in it, one after another, give its own answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vitrail.errors import InputError, option
from vitrail.model.anatomy import watch
from vitrail.model.anatomy.chains import find_chains
from vitrail.model.anatomy.flat import in_a_row, own
from vitrail.model.anatomy.hooks import Hooks
from vitrail.model.anatomy.place import CLEAR, FARTHEST, displacement, lie_there, one_patch_changed, spread
from vitrail.model.anatomy.watch import Blocks, Features, Layout, Readout, Visit
from vitrail.model.trace import first_of, logits_of

if TYPE_CHECKING:
    from vitrail.model.view import View


MOST_TRIED, MOST_MAPS = 3, 12
"""Chains of blocks, and feature maps, that are tried before a model is said to have none."""
MORE_CELLS = 16
"""Cells that are tried where the first few leave a doubt."""
EXCHANGED, AT_ONCE = 1e-3, 16
"""Without a gradient: the share of the largest change that says that a token is read, and tokens tried together."""


class Seen(NamedTuple):
    """What the model did on a blank picture, and what it answers to a probe."""

    visits: list[Visit]
    probe: Tensor
    answer: Tensor


def refuse_unmade(name: str, model: nn.Module) -> None:
    """Refuse a model whose weights are not there."""
    for key, weight in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(weight):
            raise InputError(
                f"{name} is not made yet: {key} gets its shape when the model runs for the first time; run it on a "
                "picture, and then give it"
            )
        if weight.is_meta:
            raise InputError(
                f"the weights of {name} hold no numbers: {key} is on the meta device; make the model on another "
                "device, or load its weights, and then give it"
            )


def look(view: "View") -> Seen:
    """Watch the model run once."""
    try:
        visits = watch.watch(view.model, view.blank(view.size))
    except Exception as error:  # whatever the user's code raises
        raise InputError(
            f"{view.name} could not be run on a (1, 3, {view.size[0]}, {view.size[1]}) input ({_one_line(error)}); "
            f"if it wants another height and width, give the {option('size')}"
        ) from error
    probe = torch.randn(2, 3, *view.size, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            answer = logits_of(view.model(probe.to(view.device, view.dtype)))
    except Exception as error:
        raise InputError(
            f"{view.name} could be run on one picture, but not on a (2, 3, {view.size[0]}, {view.size[1]}) input "
            f"({_one_line(error)}); wrap it in a module that takes any number of pictures"
        ) from error
    strange = _strange(answer)
    if strange:
        raise InputError(
            f"{view.name} must answer (batch, classes) logits in floating point, but it answered {strange} to 2 "
            "pictures; wrap it in a module that does"
        )
    return Seen(visits, probe, answer)


def _strange(answer: Any) -> str:
    """What is answered to two pictures, in words, where that is not logits."""
    if not isinstance(answer, Tensor):
        return "an empty tuple" if isinstance(answer, tuple) else type(answer).__name__
    if answer.layout != torch.strided or not answer.is_floating_point():
        return f"a tensor of {answer.dtype if answer.layout == torch.strided else answer.layout}"
    return str(tuple(answer.shape)) if answer.ndim != 2 or len(answer) != 2 or not answer.shape[1] else ""


def answered(view: "View", output: Any, images: int) -> Tensor:
    """The logits in what the model answered to so many pictures; another number of rows is refused."""
    logits = logits_of(output)
    if len(logits) != images:
        raise InputError(
            f"{view.name} answered {len(logits)} rows to {images} pictures; wrap it in a module that answers one row "
            "each, however many there are"
        )
    return logits


def gives_gradient(view: "View") -> bool:
    """Whether a gradient comes back from the answer: to the tokens, or to the pixels of a model without blocks.

    None does from a model that runs under ``no_grad`` or in inference mode, detaches its answer, is quantised or has
    weights made in inference mode.
    """
    if view.blocks is None:
        return reaches_pixels(view)
    layout, tokens = view.layout(view.size), view.embed(_picture(view))
    return _gradient_at(tokens, lambda x: view.head(view.encode(x, layout)[-1], layout)) is not None


def reaches_pixels(view: "View") -> bool:
    """Whether a gradient comes back to the pixels."""
    with view.still():
        return _gradient_at(_picture(view), lambda x: logits_of(view.model(x))) is not None


def _picture(view: "View") -> Tensor:
    """(1, 3, H, W): noise, always the same."""
    return torch.randn(1, 3, *view.size, generator=torch.Generator().manual_seed(0)).to(view.device, view.dtype)


def find_tokens(view: "View", seen: Seen) -> tuple[Blocks, Layout, Readout] | None:
    """The first chain of blocks, of the likeliest ones, whose parts are shown to be what they are taken for."""
    for blocks in islice(find_chains(seen.visits), MOST_TRIED):
        layout = watch.find_layout(seen.visits, blocks, view.size)
        found = None if layout is None else _readout(view, seen, blocks, layout)
        if found is not None:
            assert layout is not None
            return blocks, layout, found
    return None


def layout_at(view: "View", blocks: Blocks, size: tuple[int, int]) -> Layout:
    """The token layout for inputs of another size than the view's."""
    with view.still(), taking(view, size):
        visits = watch.watch(view.model, view.blank(size))
    layout = watch.find_layout(visits, blocks, size)
    if layout is None:
        raise InputError(f"the patch grid of {view.name} cannot be made out at {size[0]} x {size[1]} pixels")
    return layout


def find_features(view: "View", seen: Seen) -> Features | None:
    """The last feature map that the answer depends on and whose cells lie where they are drawn."""
    candidates = list(islice(watch.find_features(seen.visits, view.size), MOST_MAPS))
    if not candidates:
        return None
    probe = seen.probe[:1].to(view.device, view.dtype)
    moving = _moving(view, probe, candidates)
    for grid in dict.fromkeys(c.grid for c in moving or candidates):
        here = [candidate for candidate in moving or candidates if candidate.grid == grid]
        for candidate, far in zip(here, _displaced(view, probe, here, one_patch_changed(probe, grid))):
            if far <= CLEAR:
                return candidate
            if far > FARTHEST:
                continue
            more = one_patch_changed(probe, grid, spread(grid, MORE_CELLS))
            if _displaced(view, probe, [candidate], more)[0] <= FARTHEST:
                return candidate
    return None


def _moving(view: "View", probe: Tensor, candidates: Sequence[Features]) -> list[Features]:
    """The maps that the answer depends on, as its gradient says; none where it gives no gradient."""
    with _catching(candidates) as caught:
        try:
            with torch.enable_grad():
                logits = logits_of(view.model(probe.clone().requires_grad_()))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # weights made in inference mode can be in no graph
            return []
    reached = [candidate for candidate in candidates if caught[id(candidate.module)].requires_grad]
    gradients = _gradients(logits, [caught[id(candidate.module)] for candidate in reached])
    return [c for c, gradient in zip(reached, gradients) if gradient is not None and _strength(gradient, c) > 0]


def _displaced(
    view: "View", probe: Tensor, candidates: Sequence[Features], changes: tuple[Tensor, Tensor]
) -> list[float]:
    """How far the answers of each map lie from the patches changed."""
    changed, cells = changes
    with torch.no_grad(), _catching(candidates) as caught:
        view.model(torch.cat([probe, changed]))
    return [displacement(as_map(caught[id(c.module)], c, c.grid), cells) for c in candidates]


def as_map(tensor: Tensor, features: Features, grid: tuple[int, int]) -> Tensor:
    """A feature map in the model's own axis order -> (B, channels, rows, columns)."""
    if features.order == "NCHW":
        return tensor
    if features.order == "NLC":
        tensor = tensor[:, features.prefix :].unflatten(1, grid)
    return tensor.permute(0, 3, 1, 2)


def _strength(gradient: Tensor, features: Features) -> float:
    return float(gradient[:, features.prefix :].abs().max() if features.order == "NLC" else gradient.abs().max())


def _gradients(logits: Tensor, wanted: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Of one number of the answer; none where it has no graph, or the model overwrites what its gradient needs."""
    try:
        return torch.autograd.grad(_mixed(logits), wanted, allow_unused=True) if wanted else ()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return [None] * len(wanted)


def _gradient_at(x: Tensor, answer: Callable[[Tensor], Tensor]) -> Tensor | None:
    """The gradient of an answer with respect to what it is made of; None where the model gives none.

    A model that overwrites what its gradient needs counts as one that gives it: relevance follows such calls.
    """
    leaf = x.detach().requires_grad_()
    try:
        with torch.enable_grad():
            logits = answer(leaf)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        with torch.no_grad():
            answer(x.detach())  # what breaks without gradients too is the model's own error
        return None
    try:
        return torch.autograd.grad(_mixed(logits), [leaf], allow_unused=True)[0]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return torch.zeros_like(leaf) if "modified by an inplace operation" in str(error) else None


def _mixed(logits: Tensor) -> Tensor:
    """One number in which every class counts otherwise."""
    direction = torch.linspace(-1, 2, logits.shape[1], device=logits.device, dtype=logits.dtype)
    return (logits * direction).sum()


@contextmanager
def _catching(candidates: Sequence[Features]) -> Iterator[dict[int, Tensor]]:
    """Inside, the last answer of each candidate's module, by the module's id."""
    caught: dict[int, Tensor] = {}

    def hook(module: nn.Module, _: object, output: Any) -> None:
        caught[id(module)] = first_of(output)

    with Hooks() as hooks:
        for candidate in candidates:
            hooks.behind(candidate.module, hook)
        yield caught


def _inputs_of(view: "View", blocks: Blocks, probe: Tensor) -> list[Tensor]:
    """What each block is given when the whole model runs."""
    inputs: list[Tensor] = []
    with Hooks() as hooks:
        for module in blocks.modules:
            hooks.before(own(module), lambda _, args: inputs.append(in_a_row(args[0])))
        view.model(probe.to(view.device, view.dtype))
    return inputs


def _readout(view: "View", seen: Seen, blocks: Blocks, layout: Layout) -> Readout | None:
    """What the head reads; None where the parts are not the model's.

    Embed, encode and head one after another must give the model's own answer, every block the tokens that the model
    gives it, and each token must stand for the patch of its cell.
    """
    view.blocks, (_, probe, expected) = blocks, seen
    view._layouts[view.size] = layout
    try:
        with torch.no_grad():
            states = view.encode(view.embed(probe), layout)
            inputs = _inputs_of(view, blocks, probe)
            changed, cells = one_patch_changed(probe[:1], layout.grid)
            embedded = view.embed(torch.cat([probe[:1], changed])).transpose(1, 2)
        if len(inputs) != len(blocks.modules) or not all(map(_same, states, inputs)):
            return None
        if not lie_there(view.patch_map(embedded, layout), cells):
            return None
        last = states[-1]
        with torch.no_grad():
            logits, pool = _headed(view, last, layout)
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, IndexError, RuntimeError, ValueError, TypeError):
        return None
    finite = torch.isfinite(expected)
    if logits.shape != expected.shape or not torch.allclose(logits[finite], expected[finite], 1e-2, 1e-3):
        return None
    gradient, least = _gradient_at(last, lambda x: view.head(x, layout)), 1e-6
    if gradient is None:
        strength, least = _by_exchange(view, last, layout), EXCHANGED
    else:
        strength = gradient.float().norm(dim=2).sum(0).nan_to_num(1.0)
    if strength.max() == 0:  # an untrained head of zeros tells nothing: assume what most models do
        strength[0] = 1.0
    read = strength > least * strength.max()
    return Readout(
        prefix=tuple(read[: layout.prefix].nonzero().squeeze(1).tolist()),
        patches=bool(read[layout.prefix :].any()),
        attention=pool is not None,
    )


@torch.no_grad()
def _by_exchange(view: "View", last: Tensor, layout: Layout) -> Tensor:
    """(T,) how far the answer moves when each token is another picture's, for models that give no gradient."""
    one, other = last
    found = []
    for places in torch.arange(len(one), device=last.device).split(AT_ONCE):
        rows = one.repeat(len(places), 1, 1)
        before = view.head(rows, layout).float()
        at = torch.arange(len(places), device=last.device)
        rows[at, places] = other[places]
        found.append((view.head(rows, layout).float() - before).norm(dim=1))
    return torch.cat(found).nan_to_num(1.0)


def _headed(view: "View", last: Tensor, layout: Layout) -> tuple[Tensor, Tensor | None]:
    """The head's answer and pool, on one blank picture, or on one for each where it counts them (for class tokens)."""
    for view.counts_pictures in (False, True):
        try:
            return view.pooled(last, layout)
        except (RuntimeError, ValueError):
            if view.counts_pictures:
                raise
    raise AssertionError


def _same(found: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-2 * float(expected.abs().max().nan_to_num(0.0))
    return found.shape == expected.shape and torch.allclose(found, expected, 1e-2, tolerance, equal_nan=True)


def takes_channels_last(view: "View", probe: Tensor, expected: Tensor) -> bool:
    """Whether the model answers the same to pictures with a pixel's channels side by side.

    Code that calls ``view`` on activations, or reads their memory by itself, may not.
    """
    beside = probe.to(view.device, view.dtype).contiguous(memory_format=torch.channels_last)
    try:
        with torch.no_grad():
            found = logits_of(view.model(beside))
    except (AssertionError, RuntimeError, ValueError):
        return False
    return torch.allclose(found.float(), expected.float(), 1e-2, 1e-2 * float(expected.abs().max()), equal_nan=True)


def _breaks_with_gradients(view: "View") -> bool:
    """Whether the model answers, but not where its pixels want a gradient."""
    try:
        return not reaches_pixels(view)
    except RuntimeError:  # the model's own
        return False


@contextmanager
def reaching(view: "View") -> Iterator[None]:
    """Say it in a sentence when the model breaks because its pixels want a gradient."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or not _breaks_with_gradients(view):
            raise
        raise InputError(
            f"{view.name} gives no gradient to its pixels ({_one_line(error)}); use a method that reads tokens, such "
            "as decompx, or one that needs answers alone, such as rise"
        ) from error


@contextmanager
def taking(view: "View", size: Sequence[int]) -> Iterator[None]:
    """Say it in a sentence when the model refuses inputs of another size than its own."""
    try:
        yield
    except (AssertionError, RuntimeError, ValueError) as error:
        if tuple(size) == view.size or isinstance(error, InputError | torch.OutOfMemoryError):
            raise
        raise InputError(
            f"{view.name} cannot take pictures of {' x '.join(map(str, size))} pixels ({_one_line(error)}); "
            f"it wants {view.size[0]} x {view.size[1]}"
        ) from error


def _one_line(error: Exception) -> str:
    said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    usual = isinstance(error, AssertionError | RuntimeError | ValueError | TypeError)
    return said if usual else f"{type(error).__name__}: {said}"
