"""An explanation is a value: maps at their native grid, what was explained, by which method and model, at what cost."""

import importlib
import json
import platform
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail import show
from vitrail.errors import InputError
from vitrail.explanation.draw import sheet_of, strip_of
from vitrail.files import json_bytes, remove, write_whole

if TYPE_CHECKING:
    from vitrail.method import Method

SCHEMA = 1
EXTRA = "extra_"  # before the names of extras in maps.npz


def versions() -> dict[str, str]:
    """The libraries a result was made with."""
    packages = ("vitrail", "torch", "torchvision", "timm")
    found = {name: str(importlib.import_module(name).__version__) for name in packages}
    return found | {"python": platform.python_version()}


@dataclass(frozen=True, eq=False)
class Explanation:
    """Maps of B images, and everything needed to say where they came from. The images themselves are not held.

    Attributes:
        maps: (B, rows, columns) float32, on the CPU, at the method's native grid.
        logits: (B, classes) float32 of the clean images.
        classes: (B,) the class explained, or None where the target was a function.
        method: The method's spec string.
        config: Every parameter of the method.
        model: The model's name.
        fingerprint: A hash of the model's weights.
        size: Height and width of the model's input.
        images: What each image is called.
        class_names: The model's class names, where known.
        seconds: Wall time for all images.
        forwards: Images pushed forward through the model.
        backwards: Images pushed backward.
        versions: Library versions.
        extras: What else the method found and wants kept, by name; (B, ...) each.
        notes: What a reader of each map must know, in sentences; one tuple an image.
        precision: What was calculated in: the precision asked for, or ``fp32``, the weights' own, where the method
            would lose its order in half precision.
    """

    maps: Tensor
    logits: Tensor
    classes: Tensor | None
    method: str
    config: dict[str, Any]
    model: str
    fingerprint: str
    size: tuple[int, int]
    images: tuple[str, ...]
    class_names: tuple[str, ...] | None
    seconds: float
    forwards: int
    backwards: int
    versions: dict[str, str] = field(default_factory=versions)
    extras: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[tuple[str, ...], ...] = ()
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if not self.notes:
            object.__setattr__(self, "notes", ((),) * len(self.maps))

    def __len__(self) -> int:
        return len(self.maps)

    def __repr__(self) -> str:
        count, rows, columns = self.maps.shape
        empty, noted = int(self.empty.sum()), sum(map(bool, self.notes))
        found = f"{count} maps of {rows} x {columns}"
        found += f" ({empty} empty)" * bool(empty) + f" ({noted} with notes)" * bool(noted)
        return (
            f"Explanation({self.method} on {self.model}: {found}, "
            f"{self.seconds:.2f} s, {self.forwards} forward and {self.backwards} backward passes)"
        )

    @property
    def empty(self) -> Tensor:
        """(B,) boolean: maps that hold no evidence, because they have the same value everywhere."""
        flat = self.maps.flatten(1)
        return flat.amax(1) == flat.amin(1)

    def first(self, count: int) -> "Explanation":
        """The explanation of the first images alone, with their share of the cost."""
        share = min(count, len(self)) / len(self)
        return replace(
            self,
            seconds=self.seconds * share,
            forwards=round(self.forwards * share),
            backwards=round(self.backwards * share),
            maps=self.maps[:count],
            logits=self.logits[:count],
            classes=None if self.classes is None else self.classes[:count],
            images=self.images[:count],
            extras={name: values[:count] for name, values in self.extras.items()},
            notes=self.notes[:count],
        )

    def with_gamma(self, gamma: float) -> "Explanation":
        """MDA's maps between sparse (0) and dense (1), from what the search left behind: the model is not asked again.

        Example:
            >>> from vitrail import explain, scenes
            >>> found = explain("demo", scenes.make(7).pil, "mda(cells=2, seed=None)")
            >>> found.with_gamma(0.5).method
            'mda(seed=None, gamma=0.5, cells=2)'
        """
        from vitrail.method import MDA, parse

        method = parse(self.method)
        if not isinstance(method, MDA) or not self.extras:
            raise InputError(f"with_gamma needs an explanation by mda, but this one is by {self.method}")
        # A sparse map knows no kappa: it is forgotten there.
        method = replace(method, gamma=float(gamma), kappa=method.kappa if gamma else MDA.kappa)
        extras = self.extras | {"dense": method.dense(self.extras)}
        return replace(self, maps=method.blend(extras), method=method.spec, config=method.config, extras=extras)

    def class_name(self, index: int) -> str:
        """The name of a class of the model, with its number where another class has the same name."""
        if self.class_names is None:
            return f"class {index}"
        name = self.class_names[index]
        return f"{name} ({index})" if self.class_names.count(name) > 1 else name

    def explained(self, i: int) -> str:
        """What was explained about image ``i``, in words."""
        return "a function of the logits" if self.classes is None else self.class_name(int(self.classes[i]))

    def probability(self, i: int) -> float | None:
        """The model's probability of the class explained; None where no class is, or the model has one answer only."""
        if self.classes is None or self.logits.shape[1] == 1:
            return None
        return float(self.logits[i].softmax(0)[self.classes[i]])

    def predictions(self, i: int, top: int = 3) -> list[tuple[str, float]]:
        """The most probable classes of image ``i``, with their probabilities; none where the model has one answer."""
        if self.logits.shape[1] == 1:
            return []
        values, indices = self.logits[i].softmax(0).topk(min(top, self.logits.shape[1]))
        return [(self.class_name(int(index)), float(value)) for value, index in zip(values, indices)]

    def upsample(self, size: tuple[int, int] | None = None, mode: str = "auto") -> Tensor:
        """(B, height, width): the maps at the input's size, or any other.

        Args:
            size: Height and width, the model's input size by default.
            mode: ``bilinear``, ``bicubic`` or ``nearest``; ``auto`` as the method wants it, which is bilinear for all
                but MDA, whose cells stay whole.
        """
        if mode not in ("auto", "bilinear", "bicubic", "nearest"):
            raise InputError(f"mode must be 'auto', 'bilinear', 'bicubic' or 'nearest', but {mode!r} was given")
        if mode == "auto":
            return self._enlarge(self.maps, size or self.size)
        how: dict[str, Any] = {} if mode == "nearest" else {"align_corners": False}
        maps = self.maps[:, None]
        return torch.nn.functional.interpolate(maps, size or self.size, mode=mode, **how)[:, 0]

    def _parsed(self) -> "Method | None":
        """The method, where this installation has it: a stored explanation may be by one that it lacks."""
        from vitrail.method import parse

        try:
            return parse(self.method)
        except InputError:
            return None

    def enlarged(self, values: Any, size: tuple[int, int]) -> Any:
        """(rows, columns) -> (height, width), numpy arrays: one map as the method enlarges it, for drawing."""
        return self._enlarge(torch.from_numpy(np.array(values, np.float32))[None], size)[0].numpy()

    def _enlarge(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        method = self._parsed()
        if method is not None:
            return method.enlarge(maps, size)
        return torch.nn.functional.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]

    def is_signed(self, style: show.Style = "auto") -> bool:
        """Whether maps are drawn red for and blue against the class: as the method is meant, unless a style is chosen.

        Args:
            style: ``auto``, ``signed`` or ``heat``.
        """
        if style not in typing.get_args(show.Style):
            raise InputError(f"a style must be 'auto', 'signed' or 'heat', but {style!r} was given")
        if style != "auto":
            return style == "signed"
        method = self._parsed()
        return bool((self.maps < 0).any()) if method is None else method.signed

    def overlay(self, image: Any, i: int = 0, style: show.Style = "auto", **how: Any) -> Image.Image:
        """Map ``i`` over a picture.

        Args:
            image: The picture as the model saw it (`Preprocess.picture` gives it), or any picture of that shape.
            i: Which of the maps.
            style: ``signed`` (red for the class, blue against it), ``heat`` (dark to bright) or as the method is meant.
            how: Passed on to `show.overlay`.
        """
        from vitrail.model import pictures

        settings: dict[str, Any] = {"signed": self.is_signed(style), "mode": self.enlarged} | how
        return show.overlay(pictures.read(image), self.maps[i].numpy(), **settings)

    def picture(self, style: show.Style = "auto") -> Image.Image:
        """The maps side by side, with what each explains and what a reader must know.

        Args:
            style: ``signed`` (red for the class, blue against it), ``heat`` (dark to bright) or as the method is meant.
        """
        return strip_of(self, style)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.picture().save(buffer, "PNG")
        return buffer.getvalue()

    def manifest(self) -> dict[str, Any]:
        """Everything but the arrays, ready for JSON."""
        return {
            "schema": SCHEMA,
            "method": self.method,
            "config": self.config,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "size": list(self.size),
            "images": list(self.images),
            "notes": [list(notes) for notes in self.notes],
            "explained": [self.explained(i) for i in range(len(self))],
            "class_names": None if self.class_names is None else list(self.class_names),
            "seconds": self.seconds,
            "forwards": self.forwards,
            "backwards": self.backwards,
            "precision": self.precision,
            "versions": self.versions,
        }

    def save(self, folder: str | Path, images: Sequence[Any] | None = None, style: show.Style = "auto") -> Path:
        """Write ``maps.npz``, ``overlay.png`` and, last, ``manifest.json``; each appears whole or not at all.

        Args:
            folder: Where to write; made if it does not exist.
            images: The pictures as the model saw them, to lay the maps over; without them the maps are drawn alone.
            style: How they are drawn, see `picture`.
        """
        arrays = {"maps": self.maps.numpy(), "logits": self.logits.numpy()}
        if self.classes is not None:
            arrays["classes"] = self.classes.numpy()
        arrays |= {EXTRA + name: values.numpy() for name, values in self.extras.items()}
        sheet = self.picture(style) if images is None else sheet_of([self], images, style=style)
        said = json_bytes(self.manifest())
        folder = Path(folder)
        remove(folder / "manifest.json")  # an older manifest must not vouch for the new maps
        write_whole(folder / "maps.npz", lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
        write_whole(folder / "overlay.png", lambda file: sheet.save(file, "PNG"))
        write_whole(folder / "manifest.json", lambda file: file.write(said))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Explanation":
        """Read an explanation that `save` wrote."""
        folder = Path(folder)
        try:
            facts = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            schema = facts["schema"]
            if schema == SCHEMA:
                with np.load(folder / "maps.npz", allow_pickle=False) as stored:
                    arrays = {key: torch.from_numpy(stored[key]) for key in stored.files}
                return cls._of(facts, arrays)
        except Exception as error:  # a damaged archive or manifest may raise nearly anything
            raise InputError(f"{folder} holds no explanation that can be read ({error}); save it again") from error
        raise InputError(f"{folder} was written in format {schema}, but this version of vitrail reads {SCHEMA}")

    @classmethod
    def _of(cls, facts: dict[str, Any], arrays: dict[str, Tensor]) -> "Explanation":
        maps, logits, names = arrays["maps"], arrays["logits"], facts["class_names"]
        if maps.ndim != 3 or not len(maps) == len(logits) == len(facts["images"]):
            raise ValueError("the manifest and the maps do not belong together")
        return cls(
            maps=maps,
            logits=logits,
            classes=arrays.get("classes"),
            size=tuple(facts["size"]),
            images=tuple(facts["images"]),
            class_names=None if names is None else tuple(names),
            notes=tuple(tuple(notes) for notes in facts.get("notes", ())),
            precision=facts.get("precision", "fp32"),
            extras={key.removeprefix(EXTRA): value for key, value in arrays.items() if key.startswith(EXTRA)},
            **{
                key: facts[key]
                for key in ("method", "config", "model", "fingerprint", "seconds", "forwards", "backwards", "versions")
            },
        )
