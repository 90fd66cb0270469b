"""What a method is: a frozen dataclass with one function, `Method.maps`, and a line in the registry.

Where a part of a method costs no passes and has fields of its own, there are two functions instead: `Method.search`,
which asks the model, and `Method.render`, which makes the map of what was found: such fields can be changed afterwards.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import schema
from vitrail.method.batch import Batch
from vitrail.method.enlargement import Enlargement, enlarge
from vitrail.model import FROZEN, TRUE, Need, Rule, Target, TargetLike, View, resolve
from vitrail.perturb import Baseline
from vitrail.registry import Registry
from vitrail.spec import Configured, entered, family_of, parameters, read

Gradient = Literal["true", "frozen"]
"""The model's own gradient, or the one with attention, normalisers and gates held constant."""

RULES: dict[str, Rule] = {"true": TRUE, "frozen": FROZEN}

METHODS: Registry[type["Method"]] = Registry("method", "vitrail.methods", tell=lambda name, _: describe(name))

State: TypeAlias = dict[str, Tensor]
"""What a search found, by name; (B, ...) each, rows of zeros or -1 where an image has fewer."""

MAP = "map"
"""What the state of a method without a `Method.render` of its own holds: the maps themselves."""


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

    def maps(self, view: View, batch: Batch) -> Tensor:
        """(B, rows, columns) of `shape`, larger where there is more evidence for the target."""
        return self.render(self.search(view, batch))

    def maps_of(self, view: View, batch: Batch, targets: Sequence[Target]) -> list[Tensor]:
        """The maps of several targets, which share what passes they can."""
        return [self.render(state) for state in self.search_of(view, [batch.aimed(target) for target in targets])]

    # ------------------------------------------------------------------------------------------- search and render

    def search(self, view: View, batch: Batch) -> State:
        """What the model is asked for. It reads no field that is marked as ``render``."""
        return {MAP: self.maps(view, batch)}

    def search_of(self, view: View, batches: Sequence[Batch]) -> list[State]:
        """The same for several targets of the same images, a batch each; see `SharedPasses`."""
        return [self.search(view, batch) for batch in batches]

    def render(self, state: State) -> Tensor:
        """(B, rows, columns) from what a search found; the model is not asked."""
        return state[MAP]

    def extras(self, state: State) -> State:
        """What an explanation keeps besides the maps: all that `render` needs, and what readers may want to see."""
        return {name: values for name, values in state.items() if name != MAP or self.render_fields()}

    @classmethod
    def render_fields(cls) -> tuple[str, ...]:
        """The fields that `render` alone reads."""
        return tuple(f.name for f in dataclasses.fields(cls) if f.metadata.get("stage") == "render")

    def search_spec(self) -> str:
        """The spec without what `render` reads: methods of one such spec find the same."""
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.name in self.render_fields()}
        return replace(self, **defaults).spec

    def with_fields(self, **fields: Any) -> "Method":
        """The method with other values of its render fields."""
        able = self.render_fields()
        for name in fields:
            if name not in able:
                which = f"only {' and '.join(able)} can be" if able else "none of its parameters can be"
                raise InputError(f"{self.id}'s {name} cannot be changed without asking the model again; {which}")
        return replace(self, **fields)

    # ---------------------------------------------------------------------------------------------------- the maps

    def shape(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of the maps for inputs of ``size``: one value a pixel, or one a cell of the model's grid."""
        return size if self.pixels else view.grid_at(size)

    @property
    def enlargement(self) -> Enlargement:
        """How maps get the picture's size: smoothly, unless a method's cells are to stay whole."""
        return "bilinear"

    def enlarge(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, rows, columns) -> (B, height, width)."""
        return enlarge(maps, size, self.enlargement)

    @property
    def signed(self) -> bool:
        """Whether values below zero speak against the target: one rule for all maps, which are drawn by it."""
        return False

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        """Passes an image, the clean one included; where data decide, about how many."""
        return Passes(1, 1)

    def requirements(self) -> frozenset[Need]:
        """What the model must offer; compositions add what their parts need."""
        inner = (value.requirements() for value in vars(self).values() if isinstance(value, Method))
        return self.needs.union(*inner)

    def stamp(self) -> str:
        """Return a hash of what the method has learned: two methods of the same spec and stamp give the same maps."""
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
            >>> import torch
            >>> from vitrail.method import Saliency
            >>> Saliency().attribute("demo", torch.zeros(2, 3, 144, 144), target=3).shape
            torch.Size([2, 144, 144])
        """
        from vitrail.method.explaining import explain_batch
        from vitrail.model import load

        view, resolved = resolve(load(model), target, len(inputs))
        self.check(view)
        batch = Batch(inputs.to(view.device, view.dtype), resolved)
        with view.still(turns=True):
            return explain_batch(view, self, [batch])[0].maps.to(inputs.device)

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


class SharedPasses(Method):
    """A method whose changed pictures do not depend on the target: several targets share the model's answers."""

    @abstractmethod
    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        """What the model is asked for, once for the targets of all batches, which have the same images."""

    def search(self, view: View, batch: Batch) -> State:
        return self.search_shared(view, [batch])[0]

    def search_of(self, view: View, batches: Sequence[Batch]) -> list[State]:
        if any(isinstance(value, Baseline) and value.of_target for value in vars(self).values()):
            return super().search_of(view, batches)  # each target has pictures of its own
        return self.search_shared(view, batches)


_NEED_WORDS = {
    Need.GRADIENTS: "gradients",
    Need.FEATURES: "a spatial feature map",
    Need.TOKENS: "a chain of transformer blocks over patch tokens",
    Need.ATTENTION: "attention between all patches",
    Need.RELU: "activations of the ReLU family (ReLU, ReLU6) and no others",
    Need.PARTS: "pre-norm blocks of the usual form (no post-norm, no norms inside attention or MLP)",
}

M = TypeVar("M", bound=type[Method])


def register(
    name: str, *, paper: str, cost: str, needs: Iterable[Need] = (Need.GRADIENTS,), was: tuple[str, ...] = ()
) -> Callable[[M], M]:
    """Enter a method in the registry.

    Args:
        name: Its id in spec strings.
        paper: Where it comes from.
        cost: Forward and backward passes an image, in words.
        needs: What it needs from the model.
        was: The names that it had before.
    """

    def enter(cls: M) -> M:
        if cls.maps is Method.maps and cls.search is Method.search:
            raise ValueError(f"{cls.__name__} has neither maps nor search")
        entered(cls, name, was)
        cls.family, cls.paper, cls.cost, cls.needs = family_of(cls), paper, cost, frozenset(needs)
        return cls

    return enter


def parse(spec: str | Method) -> Method:
    """The method a spec string describes.

    Example:
        >>> parse("ig(steps=20)")
        IntegratedGradients(steps=20, gradient='true')
    """
    return read(spec, Method, "ig(steps=20)")


def methods(pattern: str = "*") -> list[str]:
    """The ids of all methods, or of those that match a pattern such as ``*cam*``."""
    return METHODS.names(pattern)


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
        "schema": schema(cls),
        "summary": (cls.__doc__ or "").strip().splitlines()[0],
    }
