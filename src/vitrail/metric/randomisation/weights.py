"""Does a map change when the model forgets? Weights are lost from the head down, in a copy, and the maps compared."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.errors import InputError
from vitrail.fields import number, random_seed
from vitrail.method import Method, SmoothGrad
from vitrail.metric.base import Metric, register, skip
from vitrail.metric.case import Case, signed
from vitrail.metric.randomisation.imagelike import Similarity, likeness
from vitrail.model import View, in_parts, is_out_of_memory

Init = Literal["model", "permute"]
"""How weights are lost: drawn anew as for a model before training, or shuffled within each tensor."""

PLAIN = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Containers that are no part of a model themselves; classes made from them are."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

TOKENS = "added tokens"
"""The stage of position, class and register tokens together; no module can be called that."""

FAILURES = (ArithmeticError, AssertionError, IndexError, RuntimeError, ValueError)
"""What a method may raise on a model without sense. Other errors are mistakes, and are not to be hidden."""

MOST_KEPT = 2**31
"""Bytes: a copy with more weights is made anew for every method and batch, so that it does not fill a GPU for good."""

# ---------------------------------------------------------------------------------------------------- losing weights


class Stage(NamedTuple):
    """A part of a model that is lost at once.

    Attributes:
        name: The module's name, or `TOKENS`.
        tensors: The names of its weights and running statistics.
    """

    name: str
    tensors: tuple[str, ...]


def stages(view: View) -> list[Stage]:
    """The parts of a model in the order in which they are lost: from the head down to the pixels.

    A transformer's are what follows its blocks, module by module, every block, the tokens added to the patches and
    the patch embedding; another model's are its modules, opened where they are plain containers or wrappers. What comes
    later in the forward pass is lost earlier.
    """
    tensors, modules = weights(view.model), dict(view.model.named_modules())
    moments = _moments(view, tensors)
    known = set() if view.blocks is None else {id(module) for module in view.blocks.modules}
    blocks = {name for name, module in modules.items() if id(module) in known}
    opened = {around for block in blocks for around in _around(block)} or _containers(modules)
    began = min((moments[name] for name in moments if _part(name, opened) in blocks), default=-1)
    parts: dict[str, list[str]] = {}
    for name in tensors:
        token = moments.get(name, math.inf) < began and _is_token(modules, name)
        parts.setdefault(TOKENS if token else _part(name, opened), []).append(name)
    first = {key: min(moments.get(name, math.inf) for name in names) for key, names in parts.items()}
    order = sorted((key for key in parts if first[key] < math.inf), key=lambda key: first[key], reverse=True)
    if not order:
        raise InputError(f"{view.name} has no weights that could be lost")
    # What the forward pass never uses goes last, with a part that it does use.
    parts[order[-1]] += [name for key, names in parts.items() if key not in order for name in names]
    return [Stage(key, tuple(parts[key])) for key in order]


def weights(model: nn.Module) -> dict[str, Tensor]:
    """All that a model has learned, by name: its parameters and the running statistics of its normalisations."""
    running = {n: b for n, b in model.named_buffers() if n.endswith(("running_mean", "running_var"))}
    return {
        name: tensor
        for name, tensor in (dict(model.named_parameters()) | running).items()
        if tensor.is_floating_point()
    }


def _around(name: str) -> Iterator[str]:
    """The names of the modules that hold it, from the whole model on."""
    path = name.split(".")
    return (".".join(path[:depth]) for depth in range(len(path)))


def _part(name: str, opened: set[str]) -> str:
    """The outermost module around a weight that is not opened; the weight itself where all are."""
    return next((module for module in _around(name) if module not in opened), name)


def _containers(modules: Mapping[str, nn.Module]) -> set[str]:
    """The modules that are opened in a model without token blocks."""
    plain = {name for name, module in modules.items() if type(module) in PLAIN}
    sizes = {name: sum(weight.numel() for weight in module.parameters()) for name, module in modules.items()}
    # Around the rows of a model's stages, a module that holds most of it is only a wrapper: a backbone, an encoder.
    wrappers = {
        name
        for name in modules
        if 2 * sizes[name] > sizes[""] and not plain.intersection(_around(name)).difference({""})
    }
    return {name for name in plain | wrappers if any(True for _ in modules[name].children())}


def _is_token(modules: Mapping[str, nn.Module], name: str) -> bool:
    """Whether a weight used before the blocks is added or prepended to the patches: no layer's, or a table's row."""
    owner = modules[name.rpartition(".")[0]]
    return isinstance(owner, nn.Embedding) or any(True for _ in owner.children())


class _Uses(TorchFunctionMode):
    """Notes when each of some tensors first goes into a calculation."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names, self.moments = names, dict[str, int]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor | list) or type(found) is tuple:  # asking for a shape or a type is no use
            self._note((*args, *(kwargs or {}).values()))
        return found

    def _note(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, tuple | list):
                self._note(value)
            elif isinstance(value, Tensor) and id(value) in self.names:
                self.moments.setdefault(self.names[id(value)], len(self.moments))


def _moments(view: View, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The order in which a forward pass first uses the weights."""
    uses = _Uses({id(tensor): name for name, tensor in tensors.items()})
    with view.still(), torch.no_grad(), uses:
        view.model(view.blank(view.size))
    return uses.moments


def drawn(model: nn.Module, stage: Stage, init: Init, generator: torch.Generator) -> dict[str, Tensor]:
    """What one stage has instead of its weights. The same on every device: the numbers are drawn on the host."""
    tensors, modules = weights(model), dict(model.named_modules())
    found = {}
    for name in stage.tensors:
        tensor, (owner, _, kind) = tensors[name].detach(), name.rpartition(".")
        if init == "permute":
            shuffled = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
            fresh = tensor.flatten()[shuffled].view_as(tensor)
        else:
            fresh = _untrained(tensor.shape, kind, modules[owner], stage.name == TOKENS, generator)
        found[name] = torch.empty_like(tensor).copy_(fresh)  # in the tensor's own type and memory format
    return found


def _untrained(shape: torch.Size, kind: str, owner: nn.Module, token: bool, generator: torch.Generator) -> Tensor:
    """Weights as a vision transformer, or a convolution, starts with. Torch's own linear layers start far larger."""
    fresh = torch.empty(shape)
    if isinstance(owner, CONVOLUTIONS) and len(shape) > 1:
        return nn.init.kaiming_normal_(fresh, nonlinearity="relu", generator=generator)
    if token or len(shape) > 1:
        return nn.init.trunc_normal_(fresh, std=0.02, generator=generator)
    return fresh.fill_(0.0 if "bias" in kind or kind == "running_mean" else 1.0)


def chosen(count: int, steps: int | None) -> list[int]:
    """After how many of ``count`` stages maps are compared: evenly spaced, the last among them."""
    if steps is None or steps >= count:
        return list(range(1, count + 1))
    return [round(count * k / steps) for k in range(1, steps + 1)]


class Forgetful:
    """A copy of a model that can lose its weights and have them back. The new ones are drawn once.

    Args:
        view: The model.
        init: How weights are lost.
        seed: Another seed draws other weights.

    Attributes:
        stages: What is lost, in order.
        model: The copy. What it has lost is what was asked for last.
    """

    def __init__(self, view: View, init: Init = "model", seed: int = 0) -> None:
        self.stages = stages(view)
        with view.still():  # in here it is in evaluation mode and wants no gradients, and so will the copy
            self.model = copy.deepcopy(view.model)
        generator = torch.Generator().manual_seed(seed)
        self._lost = [drawn(self.model, stage, init, generator) for stage in self.stages]
        self._intact = {name: tensor.data for name, tensor in weights(self.model).items()}
        self._views: dict[int, View] = {}

    def after(self, number: int) -> nn.Module:
        """The copy when its first ``number`` stages are lost."""
        tensors = weights(self.model)
        for k, stage in enumerate(self.stages):
            kept = self._lost[k] if k < number else self._intact
            for name in stage.tensors:
                # Not copied: what a view found out about these very tensors holds again when they are back.
                tensors[name].data = kept[name]
        return self.model

    @contextmanager
    def seen(self, number: int, view: View) -> Iterator[View]:
        """A view of that: what was found out about the intact model need not hold, and is found out once."""
        model = self.after(number)
        found = self._views.pop(number, None) or View.of(model, like=view)
        found.run_like(view)
        yield found
        found.memo.forget()  # what others keep with it may be large, and there are many of these views
        self._views[number] = found

    @property
    def nbytes(self) -> int:
        """The memory that its weights take, the old and the new ones."""
        return 2 * sum(tensor.nbytes for tensor in self._intact.values())


def cascade(view: View, init: Init = "model", seed: int = 0, steps: int | None = None) -> Iterator[nn.Module]:
    """A copy of the model that has lost more and more; one and the same copy each time, changed in between."""
    copied = Forgetful(view, init, seed)
    for lost in chosen(len(copied.stages), steps):
        yield copied.after(lost)


def forgetful(view: View, init: Init, seed: int) -> Forgetful:
    """The copy of a model, made anew only where the last one was of other weights. Hold the view still meanwhile.

    All methods, metrics and batches of a run ask for the same one.
    """
    return view.memo.latest(
        "metric/randomisation/weights: copy",
        (view.fingerprint(), view.device, view.precision, init, seed),
        lambda: Forgetful(view, init, seed),
        lambda copied: copied.nbytes <= MOST_KEPT,
    )


# ---------------------------------------------------------------------------------------------------- comparing maps


def _explained_if_possible(case: Case, view: View, method: Method) -> Tensor:
    """(B, rows, columns): NaN for images whose map the method cannot make on this model."""
    nothing = torch.full((len(case), *method.shape(case.view, case.size)), torch.nan, device=case.view.device)

    def ask(rows: slice) -> Tensor:
        try:
            return case.explain(case.images[rows], case.target.take(rows), view, method)
        except FAILURES as error:
            if is_out_of_memory(error):
                raise
        if rows.stop - rows.start == 1:
            return nothing[rows]
        return torch.cat([ask(slice(i, i + 1)) for i in range(rows.start, rows.stop)])

    try:
        method.check(view)
    except InputError:
        return nothing
    return torch.cat([maps.to(nothing.device) for _, maps in in_parts(len(case), len(case), ask)])


# ----------------------------------------------------------------------------------------------------------- metrics


@dataclass(frozen=True)
class _Cascade(Metric):
    """How alike maps stay while the model loses its weights, from the head down.

    Attributes:
        similarity: How maps are compared: ``spearman``, ``pearson`` and ``cosine`` at their own grid, ``ssim`` and
            ``hog`` at the size of the picture.
        sign: Compare ``absolute`` values, or the map as it is, ``signed``.
        init: Weights drawn anew as for a ``model`` before training, or shuffled within each tensor (``permute``).
        seed: Another seed draws other weights.
        steps: Compare after so many stages, evenly spaced, the last among them; after every one by default.
    """

    similarity: Similarity = "spearman"
    sign: Literal["absolute", "signed"] = "absolute"
    init: Init = "model"
    seed: int = random_seed()
    steps: int | None = number(None, low=1, high=10_000)

    def _method(self, method: Method) -> Method:
        """How maps are made."""
        return method

    def _intact(self, case: Case, method: Method) -> Tensor:
        """(B, rows, columns) the maps of the model as it is."""
        return case.maps

    def measure(self, case: Case) -> Tensor:
        """(B, P): the similarity with the intact model's map after each of P steps; their mean counts."""
        if case.method is None:
            raise InputError(f"{self.id} needs the method that made the maps; give a spec or an Explanation")
        method = self._method(case.method)
        intact = self._intact(case, method)
        key = ("cascade", method, self.init, self.seed, self.steps)
        changed = case.once(key, lambda: self._changed(case, method))
        return self._compared(case, intact, changed)

    def _changed(self, case: Case, method: Method) -> list[Tensor]:
        found, method = [], method.for_changed_model()
        with case.view.still():  # others that ask for the same copy wait
            copied = forgetful(case.view, self.init, self.seed)
            for number in chosen(len(copied.stages), self.steps):
                with copied.seen(number, case.view) as view:
                    found.append(_explained_if_possible(case, view, method))
        return found

    @property
    def uncounted(self) -> str:
        return "their map is not finite once the model has lost weights"

    def _compared(self, case: Case, intact: Tensor, changed: list[Tensor]) -> Tensor:
        """(B, P): NaN where one of the two maps is not finite."""
        same_grid = all(maps.shape == intact.shape for maps in changed) and self.similarity not in ("ssim", "hog")
        intact, kept = self._ready(case, intact, same_grid)
        compare = likeness(intact, self.similarity)
        found = []
        for maps in changed:
            ready, finite = self._ready(case, maps, same_grid)
            found.append(skip(compare(ready), ~(kept & finite)))
        return torch.stack(found, 1)

    def _ready(self, case: Case, maps: Tensor, own_grid: bool) -> tuple[Tensor, Tensor]:
        """Maps as they are compared, and which of them are finite."""
        assert case.method is not None
        if not own_grid and maps.shape[1:] != case.size:
            maps = case.method.enlarge(maps, case.size)
        finite = torch.isfinite(maps).flatten(1).all(1)
        return signed(maps.nan_to_num(0, 0, 0), self.sign), finite

    def of_each(self, measured: Tensor) -> Tensor:
        return measured.mean(1)


@register("cascading_randomisation", "Adebayo et al. 2018", higher_is_better=False, needs=["method"])
@dataclass(frozen=True)
class CascadingRandomisation(_Cascade):
    """How alike maps stay while the model loses its weights: a map that stays the same is not about the model."""


@register("mprt_smooth", "Hedström et al. 2023", higher_is_better=False, needs=["method"])
@dataclass(frozen=True)
class SmoothRandomisation(_Cascade):
    """The same with every map averaged over noisy copies of its image, so that noise alone does not count as change.

    Attributes:
        similarity: How maps are compared, see `CascadingRandomisation`.
        sign: Compare ``absolute`` values, or the map as it is, ``signed``.
        init: How weights are lost.
        seed: Another seed draws other weights and other noise.
        steps: Compare after so many stages, evenly spaced, the last among them; None for all.
        samples: Noisy copies of each image; each costs as much as one map.
        noise: The noise's standard deviation, as a share of the image's range of values.
    """

    steps: int | None = number(5, low=1, high=10_000)
    samples: int = number(8, low=1, high=10_000, cost="would explain each image {} times at every step")
    noise: float = number(0.1, low=0, high=1000)

    def _method(self, method: Method) -> Method:
        return SmoothGrad(method, self.samples, self.noise, self.seed)

    def _intact(self, case: Case, method: Method) -> Tensor:
        return case.once(("smooth", method), lambda: case.explain(case.images, method=method))
