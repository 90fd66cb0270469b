"""What a method is: a frozen dataclass with one function, `Method.maps`, and a line in the registry."""

import fnmatch
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from vitrail.errors import InputError, option
from vitrail.model import FROZEN, TRUE, Need, Rule, Target, TargetLike, View, full, in_parts, resolve, widest
from vitrail.spec import Configured, family_of, parameters, read

Gradient = Literal["true", "frozen"]
"""The model's own gradient, or the one with attention, normalisers and gates held constant."""

RULES: dict[str, Rule] = {"true": TRUE, "frozen": FROZEN}

METHODS: dict[str, type["Method"]] = {}

ROUNDED = "{spec} gave no value above the rounding of its own computation: the map is empty"
UNMOVED = "every changed picture got the same answer, up to rounding, so {spec} has nothing to tell: the map is empty"
FLAT = "{spec} gave the same value everywhere: the map is empty"

CANCELLED = 8
"""Terms that add up to no more than so many roundings of their sizes have cancelled: what is left is no evidence.

On DeiT-tiny and ViT-tiny a patch's input x gradient cancels to at most 2 roundings where it is zero by construction,
and to no less than 100,000 elsewhere."""

COPIES_ON_CPU, COPIES_ON_GPU = 32, 256
"""Images pushed through together when a method looks at many copies of each; a GPU starves on few."""


@dataclass
class Remarks:
    """What is said of some maps besides their values.

    Attributes:
        rounding: (B,) how large the rounding of each map's computation may be, where a method knows: values no larger
            are no evidence.
        lowest: (B,) the lowest answer to a changed copy of each image; infinite where none was asked about.
        highest: (B,) the highest one.
        loose: (B,) how far apart the same answers may lie by rounding alone.
        notes: What a reader of each map must know, in sentences.
    """

    rounding: Tensor
    lowest: Tensor
    highest: Tensor
    loose: Tensor
    notes: list[list[str]]

    @classmethod
    def none(cls, images: int, device: torch.device) -> "Remarks":
        """Before anything is said."""
        nothing = torch.zeros(images, dtype=widest(device), device=device)
        return cls(nothing, nothing + torch.inf, nothing - torch.inf, nothing, [[] for _ in range(images)])

    @property
    def unmoved(self) -> Tensor:
        """(B,) boolean: images whose changed copies were asked about and all got the same answer, up to rounding."""
        return (self.highest >= self.lowest) & (self.highest - self.lowest <= self.loose)


class Batch:
    """Some images on the model's device, and what is to be explained about each.

    Attributes:
        images: (B, 3, H, W) model inputs.
        logits: (B, classes) of the clean images, once some forward pass has shown them.
        extras: What a method found besides the maps and the explanation should keep, by name; (B, ...) each.
        remarks: What is said of the maps, shared with the batches made from this one.
    """

    def __init__(self, images: Tensor, target: Target | None = None, keys: Tensor | None = None) -> None:
        self.images = images
        self.logits: Tensor | None = None
        # Now, while the device has nothing to do: behind a forward pass the copy would wait for it.
        self._target = None if target is None else target.to(images.device)
        self._keys = keys
        self.extras: dict[str, Tensor] = {}
        self.remarks = Remarks.none(len(images), images.device)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.images.shape[-2], self.images.shape[-1]

    @property
    def copies_at_once(self) -> int:
        """How many changed copies of the whole batch go through the model together."""
        most = COPIES_ON_CPU if self.images.device.type == "cpu" else COPIES_ON_GPU
        return max(1, most // len(self.images))

    def in_parts(self, copies: int, ask: Callable[[slice], Tensor]) -> Iterator[Tensor]:
        """Ask about so many changed copies of the batch, some at a time; half as many from where memory runs out."""
        return (found for _, found in in_parts(copies, self.copies_at_once, ask))

    def score(self, logits: Tensor) -> Tensor:
        """(B,) scores of the clean images' logits. A method that begins with a clean pass pays for no other."""
        if self.logits is None:
            self.logits = full(logits.detach())
        if self._target is None:
            self._target = Target(self.logits.argmax(1))
        return self._target.score(logits)

    def check(self) -> None:
        """Refuse clean logits that are not numbers. This waits for the device, so `score` leaves it to the end."""
        if self.logits is not None and not _finite(self.logits):
            raise InputError(
                "the model's answer is not a number (NaN or infinite) for at least one image; "
                "check its weights and the input normalisation"
            )

    def given_or_predicted(self, view: View) -> Target:
        """The target, for methods without a clean pass of their own: only a predicted one costs a forward pass."""
        return self.settle(view) if self._target is None else self._target

    def settle(self, view: View) -> Target:
        """The target, the clean logits known as well: for methods that need both before a clean pass of their own."""
        if self.logits is None:
            with torch.no_grad():
                self.score(view.logits(self.images))
        assert self._target is not None
        return self._target

    @property
    def target(self) -> Target:
        """The target, once it is settled."""
        assert self._target is not None
        return self._target

    def generator(self, i: int, seed: int) -> torch.Generator:
        """Random numbers for image ``i`` that depend on the seed and the picture alone, not on its place in a batch."""
        if self._keys is None:
            self._keys = checksum(self.images)
        key = int(self._keys[i]) ^ (seed * 0x9E3779B97F4A7C15)
        return torch.Generator().manual_seed(key & 0x7FFFFFFFFFFFFFFF)

    def aimed(self, target: Target) -> "Batch":
        """The very same images, explained for another target."""
        other = Batch(self.images, target, self._keys)
        other.logits, other.remarks = self.logits, self.remarks
        return other

    def beside(self, images: Tensor) -> "Batch":
        """Changed copies of the same images: same target, same random numbers."""
        if self._keys is None:
            self._keys = checksum(self.images)
        other = Batch(images, self._target, self._keys)
        other.remarks = self.remarks
        return other

    def note(self, sentence: str, which: Tensor | None = None) -> None:
        """Tell the readers of all maps, or of those where ``which`` (B,) is true, something they must know."""
        for i in range(len(self)) if which is None else which.nonzero().flatten().tolist():
            if sentence not in self.remarks.notes[i]:
                self.remarks.notes[i].append(sentence)

    def heard(self, which: Tensor, answers: Tensor, loose: Tensor) -> None:
        """Remember how far the model's answers to changed copies of each image lie apart.

        Args:
            which: (M,) the image that each copy was made of.
            answers: (M,).
            loose: (M,) how far apart the same answers may lie by rounding alone.
        """
        remarks = self.remarks
        remarks.lowest = remarks.lowest.scatter_reduce(0, which, answers.to(remarks.lowest), "amin")
        remarks.highest = remarks.highest.scatter_reduce(0, which, answers.to(remarks.highest), "amax")
        remarks.loose = remarks.loose.scatter_reduce(0, which, loose.to(remarks.loose), "amax")

    def rounded(self, terms: Tensor) -> None:
        """Remember how large the rounding of a sum may be: its terms may cancel to nothing.

        Args:
            terms: (B, ..., terms), added up over the last dimension elsewhere.
        """
        sizes = terms.detach().abs().sum(-1).flatten(1).amax(1)
        rounding = CANCELLED * torch.finfo(terms.dtype).eps * sizes
        self.remarks.rounding = torch.maximum(self.remarks.rounding, rounding.to(self.remarks.rounding))


def checksum(images: Tensor) -> Tensor:
    """(B,) integers that tell pictures apart; computed in whole numbers, hence the same on every device."""
    bits = images.detach().float().contiguous().flatten(1).view(torch.int32).long()
    weights = (torch.arange(bits.shape[1], device=bits.device) * 2654435761 + 1013904223) | 1
    return (bits * weights).sum(1).cpu()


@dataclass(frozen=True)
class Method(Configured, ABC):
    """A way to explain. The fields are its configuration: keyword arguments, spec string, manifest and cache key."""

    kind = "method"
    registry = METHODS
    family: ClassVar[str]
    paper: ClassVar[str]
    cost: ClassVar[str]
    needs: ClassVar[frozenset[Need]]
    pixels: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    """Whether only changed copies of the images are looked at: then several targets are best asked for at once."""

    classless: ClassVar[bool] = False
    """Whether the map is the same for every class: then there is nothing to compare classes by."""

    half: ClassVar[bool] = False
    """Whether the map keeps its order where the model answers in half precision: means of many answers do. What is read
    of gradients and of small differences does not, and is made at the model's own precision, whatever is asked for."""

    def keeps_half(self) -> bool:
        """The same as ``half``; compositions ask their base."""
        return self.half

    def tells_classes(self) -> bool:
        """Whether two classes may have different maps; compositions ask their base."""
        return not self.classless

    @abstractmethod
    def maps(self, view: View, batch: Batch) -> Tensor:
        """(B, rows, columns) of `shape`, larger where there is more evidence for the target."""

    def maps_of(self, view: View, batch: Batch, targets: Sequence[Target]) -> list[Tensor]:
        """The maps of several targets; methods that look at changed copies share their passes here."""
        return [self.maps(view, batch.aimed(target)) for target in targets]

    def shape(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of the maps for inputs of ``size``: one value a pixel, or one a cell of the model's grid."""
        return size if self.pixels else view.grid_at(size)

    def enlarge(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, rows, columns) -> (B, height, width): smoothly, unless a method's cells are to stay whole."""
        return torch.nn.functional.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]

    @property
    def signed(self) -> bool:
        """Whether values below zero speak against the target: one rule for all maps, which are drawn by it."""
        return False

    def passes(self, view: View, size: tuple[int, int]) -> int | None:
        """Forward passes an image, at most or roughly, where they are so many that a progress bar should count them."""
        return None

    def requirements(self) -> frozenset[Need]:
        """What the model must offer; compositions add what their parts need."""
        inner = (value.requirements() for value in vars(self).values() if isinstance(value, Method))
        return self.needs.union(*inner)

    def stamp(self) -> str:
        """Of what was learned and is not in the spec: two methods of one spec and one stamp give the same maps."""
        return "".join(value.stamp() for value in vars(self).values() if isinstance(value, Method))

    def for_changed_model(self) -> "Method":
        """The method that explains a model whose weights were changed on purpose; compositions ask their parts."""
        inner = {name: v.for_changed_model() for name, v in vars(self).items() if isinstance(v, Method)}
        return replace(self, **inner) if inner else self

    def attribute(self, model: Any, inputs: Tensor, target: TargetLike = None) -> Tensor:
        """Maps for model inputs, in Captum's manner.

        Args:
            model: A module, a view or a name.
            inputs: (B, 3, H, W) model inputs.
            target: What to explain, the predicted class by default.

        Returns:
            (B, rows, columns) float32, on the inputs' device.

        Example:
            >>> from vitrail.method import Saliency
            >>> Saliency().attribute("demo", torch.zeros(2, 3, 144, 144), target=3).shape
            torch.Size([2, 144, 144])
        """
        from vitrail.model import load

        view, resolved = resolve(load(model), target, len(inputs))
        self.check(view)
        batch = Batch(inputs.to(view.device, view.dtype), resolved)
        with view.still():
            return self.evidence(view, batch).to(inputs.device)

    def evidence(self, view: View, batch: Batch) -> Tensor:
        """(B, rows, columns) float32: the maps as they are handed out, checked.

        A map that is no larger than the rounding of its own computation becomes zero, and so does one for which all
        changed copies of the image got the same answer; a note says so.
        """
        with nullcontext() if self.keeps_half() else view.exactly():
            maps = self.maps(view, batch).detach()
        expected = (len(batch), *self.shape(view, batch.size))
        if maps.shape != expected:
            raise RuntimeError(f"{self.spec} gave maps of {tuple(maps.shape)}, not {expected}")
        maps = maps.float()
        self.check_numbers(view, batch, maps)
        largest = maps.abs().flatten(1).amax(1)
        rounded = (largest <= batch.remarks.rounding.to(largest)) & (largest > 0)
        unmoved = batch.remarks.unmoved
        nothing = rounded | unmoved
        flat = nothing | (maps.flatten(1).amax(1) == maps.flatten(1).amin(1))
        if flat.any():  # the first wait for the device that is not the check above
            maps = maps.masked_fill(nothing[:, None, None], 0)
            batch.note(UNMOVED.format(spec=self.spec), unmoved)
            batch.note(ROUNDED.format(spec=self.spec), rounded & ~unmoved)
            batch.note(FLAT.format(spec=self.spec), flat & ~nothing)
        return maps

    def check(self, view: View) -> None:
        """Refuse a model that cannot give what the method needs, and name methods that would work."""
        missing = [need for need in self.requirements() if not view.can_give(need)]
        if not missing:
            self.check_evidence(view)
            return
        needed = " and ".join(_NEED_WORDS[need] for need in sorted(missing))
        foreign = view.activations.foreign if Need.RELU in missing else ()
        instead = f" (it has {', '.join(foreign)})" if foreign else ""
        if Need.GRADIENTS in missing:
            instead = " (it gives no gradient: it runs without, detaches its answer, or is quantised)"
        able = [m.id for m in (cls() for cls in METHODS.values()) if m.requirements() <= view.offers]
        serving = [name for name in able if name not in ("aha", "random")]  # one wants training, the other says nothing
        raise InputError(
            f"{self.spec} needs {needed}, which {view.name} does not have{instead}; use {', '.join(serving)}"
        )

    def check_evidence(self, view: View) -> None:
        """Refuse what is zero by construction on a model, before any work; compositions ask their parts."""
        for value in vars(self).values():
            if isinstance(value, Method):
                value.check_evidence(view)

    def check_numbers(self, view: View, batch: Batch, maps: Tensor) -> None:
        """Refuse answers and maps that are not finite."""
        batch.check()
        if not _finite(maps):
            raise InputError(
                f"{self.spec} gave values that are not finite on {view.name}; "
                f"check the model's weights, or use {option('precision', 'fp32')}"
            )


def _finite(values: Tensor) -> bool:
    """Whether all values are finite: the largest of them tells, in one pass and one wait for the device."""
    return not values.numel() or math.isfinite(float(torch.linalg.vector_norm(values, math.inf)))


_NEED_WORDS = {
    Need.GRADIENTS: "gradients",
    Need.FEATURES: "a spatial feature map",
    Need.TOKENS: "a chain of transformer blocks over patch tokens",
    Need.ATTENTION: "attention between all patches",
    Need.RELU: "activations of the ReLU family (ReLU, ReLU6) and no others",
    Need.PARTS: "pre-norm blocks of the usual form (no post-norm, no norms inside attention or MLP)",
}

M = TypeVar("M", bound=type[Method])


def register(name: str, *, paper: str, cost: str, needs: Iterable[Need] = (Need.GRADIENTS,)) -> Callable[[M], M]:
    """Enter a method in the registry.

    Args:
        name: Its id in spec strings.
        paper: Where it comes from.
        cost: Forward and backward passes an image, in words.
        needs: What it needs from the model.
    """

    def enter(cls: M) -> M:
        if name in METHODS:
            raise ValueError(f"two methods are called {name}")
        cls.id, cls.family, cls.paper, cls.cost, cls.needs = name, family_of(cls), paper, cost, frozenset(needs)
        METHODS[name] = cls
        return cls

    return enter


def parse(spec: str | Method) -> Method:
    """The method a spec string describes.

    Example:
        >>> parse("ig(steps=20)")
        IntegratedGradients(steps=20, gradient='true')
    """
    return read(spec, Method, "ig(steps=20)")  # type: ignore[type-abstract]


def methods(pattern: str = "*") -> list[str]:
    """The ids of all methods, or of those that match a pattern such as ``*cam*``."""
    return [name for name in sorted(METHODS) if fnmatch.fnmatchcase(name, pattern)]


def describe(name: str) -> dict[str, Any]:
    """What the command line and the viewer show of a method."""
    cls = METHODS[name]
    return {
        "id": name,
        "family": cls.family,
        "paper": cls.paper,
        "needs": sorted(need.value for need in cls.needs),
        "cost": cls.cost,
        "params": parameters(cls),
        "summary": (cls.__doc__ or "").strip().splitlines()[0],
    }
