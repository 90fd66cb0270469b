"""An explanation is a value: maps at their native grid, what was explained, by which method and model, at what cost."""

import importlib
import json
import platform
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
    from vitrail.explanation.bundle import Bundle
    from vitrail.method import Enlargement, Method

SCHEMA, READ = 2, (1, 2)
"""The form in which explanations are saved, and those that can be read."""
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
        maps: (B, rows, columns) float32, on the CPU, at the method's native grid; (B, K, rows, columns) where several
            targets were asked for, see `one`.
        logits: (B, classes) float32 of the clean images.
        classes: (B,) or (B, K) the class explained, -1 where the target was a function; None where all were.
        method: The method's spec string.
        config: Every parameter of the method.
        model: The model's name.
        fingerprint: A hash of the model's weights.
        size: Height and width of the model's input.
        images: What each image is called.
        class_names: The model's class names, where known.
        seconds: Wall time for all images.
        forwards: Images pushed forward through the model; what several methods shared counts for each of them.
        backwards: Images pushed backward.
        versions: Library versions.
        extras: What else the method found and wants kept, by name; (B, ...) or (B, K, ...) each. What `with_` renders
            maps from is among it.
        notes: What a reader of each map must know, in sentences; one tuple a map, image by image.
        precision: What was calculated in: the precision asked for, or ``fp32``, the weights' own, where the method
            would lose its order in half precision.
        compiled: Whether the model was compiled.
        targets: What the axis of several targets stands for, as it was asked for.
        rivals: (B, any) or (B, K, any) classes that the images show besides, -1 for none, where targets knew them.
        hashes: A checksum of each model input.
        signed: Whether values below zero speak against the target.
        enlargement: How maps get the picture's size, see `vitrail.method.enlargement`.
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
    compiled: bool = False
    targets: tuple[str, ...] | None = None
    rivals: Tensor | None = None
    hashes: tuple[str, ...] = ()
    signed: bool | None = None
    enlargement: "Enlargement | None" = None

    def __post_init__(self) -> None:
        settle = partial(object.__setattr__, self)
        if not self.notes:
            settle("notes", ((),) * (len(self.maps) * self.count))
        if self.signed is None or self.enlargement is None:  # of an earlier version, or made by hand
            method = self._parsed()
            settle("signed", bool((self.maps < 0).any()) if method is None else method.signed)
            settle("enlargement", "bilinear" if method is None else method.enlargement)

    def __len__(self) -> int:
        return len(self.maps)

    def __repr__(self) -> str:
        rows, columns = self.maps.shape[-2:]
        empty, noted = int(self.empty.sum()), sum(map(bool, self.notes))
        found = f"{len(self)} maps of {rows} x {columns}"
        found += f" for each of {self.count} targets" * (self.targets is not None)
        found += f" ({empty} empty)" * bool(empty) + f" ({noted} with notes)" * bool(noted)
        return (
            f"Explanation({self.method} on {self.model}: {found}, "
            f"{self.seconds:.2f} s, {self.forwards} forward and {self.backwards} backward passes)"
        )

    @property
    def count(self) -> int:
        """How many targets there are."""
        return 1 if self.targets is None else len(self.targets)

    @property
    def empty(self) -> Tensor:
        """(B,) or (B, K) boolean: maps that hold no evidence, because they have the same value everywhere."""
        flat = self.maps.flatten(-2)
        return flat.amax(-1) == flat.amin(-1)

    def one(self, target: int | str) -> "Explanation":
        """The explanation of one of several targets, by its name or its place.

        Example:
            >>> from vitrail import explain, scenes
            >>> found = explain("demo", scenes.make(7).pil, "genatt", targets=["predicted", "whale"])
            >>> found.maps.shape, found.one("whale").explained(0)
            (torch.Size([1, 2, 12, 12]), 'whale')
        """
        names = self.targets or (self.explained(0),)
        place = names.index(target) if target in names else target
        if not isinstance(place, int) or not 0 <= place < len(names):
            raise InputError(f"this explanation has the targets {', '.join(names)}, but {target!r} was asked for")
        if self.targets is None:
            return self
        classes = None if self.classes is None else self.classes[:, place]
        return replace(
            self,
            maps=self.maps[:, place],
            classes=None if classes is None or (classes < 0).all() else classes,
            extras={name: values[:, place] for name, values in self.extras.items()},
            notes=self.notes[place :: self.count],
            rivals=None if self.rivals is None else self.rivals[:, place],
            targets=None,
        )

    def each(self) -> list["Explanation"]:
        """The explanations of all targets, one by one."""
        return [self] if self.targets is None else [self.one(place) for place in range(self.count)]

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
            notes=self.notes[: count * self.count],
            rivals=None if self.rivals is None else self.rivals[:count],
            hashes=self.hashes[:count],
        )

    def with_(self, **fields: Any) -> "Explanation":
        """The same search rendered with other values of the method's render fields: the model is not asked again.

        Args:
            fields: Such as MDA's ``gamma`` between sparse (0) and dense (1), VAR's ``temperatures``, SkipPLUS's
                ``start``; ``vitrail methods`` says which fields a method renders with.

        Example:
            >>> from vitrail import explain, scenes
            >>> found = explain("demo", scenes.make(7).pil, "mda(cells=2, seed=None)")
            >>> found.with_(gamma=0.5).method
            'mda(seed=None, gamma=0.5, cells=2)'
        """
        from vitrail.method import parse, render_again

        method = parse(self.method)
        changed = method.with_fields(**fields)
        if not self.extras:
            raise InputError(f"this explanation by {self.method} kept nothing to render maps from; explain once more")
        made = [
            render_again(method, changed, one.extras, one.notes, one.extras.get("rounding"), one.extras.get("unmoved"))
            for one in self.each()
        ]
        maps = torch.stack([one.maps for one in made], 1)
        extras = {name: torch.stack([one.extras[name] for one in made], 1) for name in made[0].extras}
        single = self.targets is None
        return replace(
            self,
            maps=maps[:, 0] if single else maps,
            method=changed.spec,
            config=changed.config,
            extras=self.extras | {name: values[:, 0] if single else values for name, values in extras.items()},
            notes=tuple(one.notes[i] for i in range(len(self)) for one in made),
            signed=changed.signed,
            enlargement=changed.enlargement,
        )

    def class_name(self, index: int) -> str:
        """The name of a class of the model, with its number where another class has the same name."""
        if self.class_names is None:
            return f"class {index}"
        name = self.class_names[index]
        return f"{name} ({index})" if self.class_names.count(name) > 1 else name

    def explained(self, i: int) -> str:
        """What was explained about image ``i``, in words."""
        self._need_one()
        return "a function of the logits" if self.classes is None else self.class_name(int(self.classes[i]))

    def _need_one(self) -> None:
        if self.targets is not None:
            raise InputError(
                f"this explanation is of the targets {', '.join(self.targets)}; take one of them, such as "
                f"one({self.targets[0]!r})"
            )

    def probability(self, i: int) -> float | None:
        """The model's probability of the class explained; None where no class is, or the model has one answer only."""
        self._need_one()
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
        """(B, height, width), or (B, K, height, width): the maps at the input's size, or any other.

        Args:
            size: Height and width, the model's input size by default.
            mode: ``bilinear``, ``bicubic`` or ``nearest``; ``auto`` as the method wants it, which is bilinear for all
                but MDA, whose cells stay whole.
        """
        if mode not in ("auto", "bilinear", "bicubic", "nearest"):
            raise InputError(f"mode must be 'auto', 'bilinear', 'bicubic' or 'nearest', but {mode!r} was given")
        wanted, maps = size or self.size, self.maps.flatten(0, -3)
        if mode == "auto":
            found = self._enlarge(maps, wanted)
        else:
            how: dict[str, Any] = {} if mode == "nearest" else {"align_corners": False}
            found = torch.nn.functional.interpolate(maps[:, None], wanted, mode=mode, **how)[:, 0]
        return found.view(*self.maps.shape[:-2], *wanted)

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
        from vitrail.method import enlarge

        assert self.enlargement is not None
        return enlarge(maps, size, self.enlargement)

    def is_signed(self, style: show.Style = "auto") -> bool:
        """Whether maps are drawn red for and blue against the class: as the method is meant, unless a style is chosen.

        Args:
            style: ``auto``, ``signed`` or ``heat``.
        """
        if style not in typing.get_args(show.Style):
            raise InputError(f"a style must be 'auto', 'signed' or 'heat', but {style!r} was given")
        return bool(self.signed) if style == "auto" else style == "signed"

    def overlay(self, image: Any, i: int = 0, style: show.Style = "auto", **how: Any) -> Image.Image:
        """Map ``i`` over a picture.

        Args:
            image: The picture as the model saw it (`Preprocess.picture` gives it), or any picture of that shape.
            i: Which of the maps.
            style: ``signed`` (red for the class, blue against it), ``heat`` (dark to bright) or as the method is meant.
            how: Passed on to `show.overlay`.
        """
        from vitrail.model import pictures

        self._need_one()
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
            "targets": None if self.targets is None else list(self.targets),
            "explained": self._all_explained(),
            "class_names": None if self.class_names is None else list(self.class_names),
            "seconds": self.seconds,
            "forwards": self.forwards,
            "backwards": self.backwards,
            "precision": self.precision,
            "compiled": self.compiled,
            "hashes": list(self.hashes),
            "signed": self.signed,
            "enlargement": self.enlargement,
            "versions": self.versions,
        }

    def _all_explained(self) -> list[Any]:
        """What was explained about each image, in words; a list an image where there are several targets."""
        columns = [[one.explained(i) for i in range(len(self))] for one in self.each()]
        return columns[0] if self.targets is None else [list(row) for row in zip(*columns)]

    def arrays(self) -> dict[str, np.ndarray]:
        """All tensors as numpy arrays, by the names that files have them under."""
        found = {"maps": self.maps, "logits": self.logits, "classes": self.classes, "rivals": self.rivals}
        named = {name: values.numpy() for name, values in found.items() if values is not None}
        return named | {EXTRA + name: values.numpy() for name, values in self.extras.items()}

    def bundle(self, images: Sequence[Any]) -> "Bundle":
        """Everything needed to draw the maps, judge them again and make them again, without the model; see `Bundle`.

        Args:
            images: The pictures as the model saw them (`Preprocess.picture` gives each).
        """
        from vitrail.explanation.bundle import Bundle

        return Bundle.of(self, images)

    def save(self, folder: str | Path, images: Sequence[Any] | None = None, style: show.Style = "auto") -> Path:
        """Write ``maps.npz``, ``overlay.png`` and, last, ``manifest.json``; each appears whole or not at all.

        Args:
            folder: Where to write; made if it does not exist.
            images: The pictures as the model saw them, to lay the maps over; without them the maps are drawn alone.
            style: How they are drawn, see `picture`.
        """
        arrays = self.arrays()
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
            if schema in READ:
                with np.load(folder / "maps.npz", allow_pickle=False) as stored:
                    arrays = {key: torch.from_numpy(stored[key]) for key in stored.files}
                return cls.of(facts, arrays)
        except Exception as error:  # a damaged archive or manifest may raise nearly anything
            raise InputError(f"{folder} holds no explanation that can be read ({error}); save it again") from error
        raise InputError(
            f"{folder} was written in format {schema}, but this version of vitrail reads {' and '.join(map(str, READ))}"
        )

    @classmethod
    def of(cls, facts: dict[str, Any], arrays: dict[str, Tensor]) -> "Explanation":
        """The explanation that a `manifest` and `arrays` describe."""
        maps, logits, names = arrays["maps"], arrays["logits"], facts["class_names"]
        targets = facts.get("targets")
        axes = 3 if targets is None else 4
        if maps.ndim != axes or not len(maps) == len(logits) == len(facts["images"]):
            raise ValueError("the manifest and the maps do not belong together")
        if targets is not None and maps.shape[1] != len(targets):
            raise ValueError("the manifest and the maps have other numbers of targets")
        return cls(
            maps=maps,
            logits=logits,
            classes=arrays.get("classes"),
            size=tuple(facts["size"]),
            images=tuple(facts["images"]),
            class_names=None if names is None else tuple(names),
            notes=tuple(tuple(notes) for notes in facts.get("notes", ())),
            precision=facts.get("precision", "fp32"),
            compiled=facts.get("compiled", False),
            targets=None if targets is None else tuple(targets),
            rivals=arrays.get("rivals"),
            hashes=tuple(facts.get("hashes", ())),
            signed=facts.get("signed"),
            enlargement=facts.get("enlargement"),
            extras={key.removeprefix(EXTRA): value for key, value in arrays.items() if key.startswith(EXTRA)},
            **{
                key: facts[key]
                for key in ("method", "config", "model", "fingerprint", "seconds", "forwards", "backwards", "versions")
            },
        )
