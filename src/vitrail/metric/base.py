"""What a metric is: a frozen dataclass with one function, `Metric.measure`, and a line in the registry."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from vitrail.fields import schema
from vitrail.metric.case import Case
from vitrail.registry import Registry
from vitrail.spec import Configured, entered, family_of, parameters, read

Needs = Literal["masks", "labels", "method"]
"""What a metric must be given beside the model, the images and their maps: where the object is, what the picture
shows, or the method itself, to explain other pictures or another model by it."""

METRICS: Registry[type["Metric"]] = Registry("metric", "vitrail.metrics", tell=lambda name, _: describe(name))


@dataclass(frozen=True)
class Metric(Configured, ABC):
    """A way to judge maps. The fields are its protocol: spec string, table and stored rows name them all."""

    kind = "metric"
    registry = METRICS
    family: ClassVar[str]
    paper: ClassVar[str]
    higher_is_better: ClassVar[bool]
    needs: ClassVar[frozenset[Needs]]
    uses_others: ClassVar[bool] = False
    """Whether it sets other pictures beside those of the case."""

    @abstractmethod
    def measure(self, case: Case) -> Tensor:
        """(B,) one number an image, NaN for one that does not count; or (B, P) that `of_each` and `of_all` sum up."""

    def beside(self) -> tuple["Metric", ...]:
        """What `evaluate` measures too, because the number says little without it."""
        return ()

    @property
    def uncounted(self) -> str:
        """Why images have no number, for those that `measure` gives none."""
        return "it could not be measured on them"

    def of_each(self, measured: Tensor) -> Tensor:
        """(N,) the number of each image, from what `measure` gave."""
        return measured

    def of_all(self, measured: Tensor) -> Tensor:
        """() the number of all images together: their mean, where a paper has no other way."""
        return self.of_each(measured).nanmean()


T = TypeVar("T", bound=type[Metric])


def register(
    name: str, paper: str, *, higher_is_better: bool, needs: Iterable[Needs] = (), was: tuple[str, ...] = ()
) -> Callable[[T], T]:
    """Enter a metric in the registry.

    Args:
        name: Its id in spec strings.
        paper: Where it was defined.
        higher_is_better: Whether a larger number speaks for the map.
        needs: What must be given.
        was: The names that it had before.
    """

    def enter(cls: T) -> T:
        entered(cls, name, was)
        cls.family, cls.paper = family_of(cls), paper
        cls.higher_is_better, cls.needs = higher_is_better, frozenset(needs)
        return cls

    return enter


def parse(spec: str | Metric) -> Metric:
    """The metric a spec string describes.

    Example:
        >>> parse("insertion(step=448)").higher_is_better
        True
    """
    return read(spec, Metric, "insertion(step=448)")  # type: ignore[type-abstract]


def metrics(pattern: str = "*") -> list[str]:
    """The ids of all metrics, or of those that match a pattern such as ``*aopc``."""
    return METRICS.names(pattern)


def describe(name: str) -> dict[str, Any]:
    """What the command line and the viewer show of a metric."""
    from vitrail.metric.presets import PRESETS

    cls = METRICS[name]
    return {
        "id": name,
        "family": cls.family,
        "paper": cls.paper,
        "higher_is_better": cls.higher_is_better,
        "needs": sorted(cls.needs),
        "presets": [key for key, preset in PRESETS.items() if any(parse(m).id == name for m in preset.metrics)],
        "params": parameters(cls),
        "schema": schema(cls),
        "summary": (cls.__doc__ or "").strip().splitlines()[0],
    }


def skip(values: Tensor, skipped: Tensor) -> Tensor:
    """The values, NaN where an image does not count."""
    return torch.where(skipped.to(values.device), torch.nan, values)
