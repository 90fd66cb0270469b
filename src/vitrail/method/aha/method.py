"""AHA: an explainer that has learned, for one model, to rank regions by what insertion and deletion will find."""

from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import number
from vitrail.method.base import MAP, Method, State, register
from vitrail.method.batch import Batch
from vitrail.model import View

if TYPE_CHECKING:
    from vitrail.method.aha.explainer import Explainer

SHIPPED = Path(__file__).parents[2] / "scenes" / "weights" / "scenes_aha"
"""The explainer of the demo model, once there is one."""

UNSEEN = (
    "the explainer never saw this class in training: all such classes have the same map of a picture",
    "the explainer never saw this class in training: refinement begins with a map that all such classes share",
    "the explainer never saw this class in training: its map rests on what speaks for it in the model alone",
)
"""The note on a map of such a class: without evidence, without evidence but refined, and with evidence."""

CURVE = 16
"""Steps of the curves that refinement looks at: so many pictures each for insertion and deletion."""


@register(
    "aha",
    paper="Learn to Rank (AHA) 2025",
    cost="1 forward, half a backward and a small decoder; each step of refinement 32 forwards and 32 backwards",
    needs=(),
)
@dataclass(frozen=True)
class AHA(Method):
    """A trained explainer's map: one pass, and on request a few steps of its training objective on the image itself.

    Attributes:
        explainer: A folder that ``vitrail train`` wrote, or a repository on the Hugging Face Hub; ``auto`` takes the
            one that comes with vitrail for this model.
        refine: Steps on each image by itself (T in the paper, which reports 0 and 3).
        rate: The learning rate of these steps.
        other_model: Use the explainer on a model that it was not trained for.
        contrast: The power that makes magnitudes of an order; by default the one that training found, while 1 leaves
            maps as they were learned, which is the paper's way.
    """

    pixels: ClassVar[bool] = True
    half: ClassVar[bool] = True
    explainer: str = "auto"
    refine: int = number(0, low=0, high=1000, cost="would refine each map in {} steps, each of 32 passes and 32 back")
    rate: float = number(3e-4, above=0, high=1)
    other_model: bool = False
    contrast: float | None = number(None, above=0, high=100, stage="render")

    def __post_init__(self) -> None:
        if not self.refine and self.rate != type(self).rate:
            raise InputError(
                f"aha's rate is that of its refinement, but rate={self.rate} was given without any; give refine=3 too, "
                "or leave it out"
            )

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(1 + 2 * CURVE * self.refine, 1 + 2 * CURVE * self.refine)

    def check(self, view: View) -> None:
        super().check(view)
        self.loaded(view)

    def stamp(self) -> str:
        folder = self._folder
        if not folder.is_dir():
            return ""  # a repository on the Hub, or nothing at all, which `check` tells
        return sha256(b"".join(file.read_bytes() for file in sorted(folder.glob("*.*")))).hexdigest()[:16]

    def for_changed_model(self) -> Method:
        return replace(self, other_model=True)

    @property
    def _folder(self) -> Path:
        return SHIPPED if self.explainer == "auto" else Path(self.explainer).expanduser()

    def loaded(self, view: View) -> "Explainer":
        """The explainer, on the view's device and with its digits, if it was trained for this model."""
        folder = self._folder
        source = str(folder) if self.explainer == "auto" else self.explainer
        if self.explainer == "auto" and not folder.is_dir():
            raise InputError(_none_for(view))
        stamp = max((file.stat().st_mtime_ns for file in folder.iterdir()), default=0) if folder.is_dir() else 0
        found = _load(source, stamp, view.device, torch.promote_types(view.dtype, torch.float32))
        if self.explainer == "auto" and found.config["fingerprint"] != view.fingerprint() and not self.other_model:
            raise InputError(_none_for(view))
        found.check(view, other_model=self.other_model)
        return found

    def search(self, view: View, batch: Batch) -> State:
        """The map as it was learned, and the power that training found."""
        from vitrail.method.aha.known import LEARNED

        explainer = self.loaded(view)
        with view.still():  # a recording's memory is shared by all threads
            found = self._ranked(explainer, view, batch)
        sentence = UNSEEN[2 if explainer.config["evidence"] else 1 if self.refine else 0]
        batch.note(sentence, explainer.unseen(_classes(batch)))
        batch.note(LEARNED, explainer.trained_on(view, batch.images))
        return {MAP: found, "contrast": torch.full((len(batch),), float(explainer.config["contrast"]))}

    def render(self, state: State) -> Tensor:
        power = float(state["contrast"][0]) if self.contrast is None else self.contrast
        return state[MAP] if power == 1 else state[MAP] ** power

    def _ranked(self, explainer: "Explainer", view: View, batch: Batch) -> Tensor:
        """(B, H, W) as they were learned."""
        # Here, because they bring much of the package with them, which the registry need not.
        from vitrail.method.aha.objective import Objective
        from vitrail.method.aha.recorded import answered, recorded
        from vitrail.method.aha.refine import refine

        recording = None if self.refine else recorded(explainer, view, batch.images)
        if recording is not None:
            batch.learn(recording.look(view, batch.images))
            return recording.tell(view, _classes(batch))
        sight = explainer.encode(view, batch.images)
        batch.learn(sight.logits)
        classes = _classes(batch)
        if not self.refine:
            return answered(explainer, sight, batch.images, classes)
        return refine(
            explainer,
            view,
            batch.images,
            classes,
            self.refine,
            rate=self.rate,
            features=sight.features(classes),
            objective=Objective(steps=CURVE),
        )


def _classes(batch: Batch) -> Tensor:
    """(B,) the classes to explain, once they are settled."""
    if batch.target.classes is None:
        raise InputError("aha explains classes, but a function of the logits was given; give a class as the target")
    return batch.target.classes


def _none_for(view: View) -> str:
    return (
        f"no explainer for {view.name} comes with vitrail; train one with: vitrail train --model {view.name} "
        "--data folder:PHOTOS, and give its folder: aha(explainer='DIR')"
    )


@lru_cache(maxsize=4)
def _load(source: str, _stamp: int, device: torch.device, dtype: torch.dtype) -> "Explainer":
    """An explainer, read once; the stamp changes when its folder does."""
    from vitrail.method.aha.explainer import Explainer

    return Explainer.from_pretrained(source).to(device, dtype).requires_grad_(False)
