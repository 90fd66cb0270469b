"""Numbers that the authors' own metric code gave for DeiT-tiny on real images, and how ours compare with them.

Each ``tests/golden/metrics/NAME.npz`` with a ``specs`` entry holds

- ``source``: the repository, its commit, and what it took to run it;
- ``files``: the images, relative to the assets;
- ``grids``: (N, 14, 14) one signed map an image, DecompX of the class explained;
- ``explained`` and ``labels``: (N,) classes;
- ``specs``: (S,) ours that must give the same, and ``maps``: (S,) whether they judge the ``grid`` or its ``pixels``;
- ``slow``: (S,) whether a spec is left to the long run;
- ``value_I``: () or (N,) what the authors' code gave for spec I, of all images together or of each;
- ``curve_I``: (N, K) the curve, where their code gives one; it may lack our first point;
- ``boxes``: (M, 5) number of the image and x0, y0, x1, y1 in its input, where boxes are needed;
- ``ignored``: where masks are needed, what their pixels without a label are: ``out``, or part of the ``rest``.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from helpers.goldens import deit_tiny
from vitrail.data.masks import masks_of
from vitrail.metric import CurveMetric, parse
from vitrail.metric.case import Case
from vitrail.model import Target

FOLDER = Path(__file__).parents[1] / "golden" / "metrics"
NOISE = 0.05
"""How much noise, relative to the largest value, sets the pixels of an enlarged map apart, so that none are tied."""


@dataclass(frozen=True)
class Agreement:
    """How far our number lies from the authors' one.

    Attributes:
        value: The largest difference of the scores.
        curve: The largest difference of the curves; None where their code gives none.
    """

    value: float
    curve: float | None


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest absolute difference; NaN agrees with NaN alone."""
    if ours.shape != theirs.shape or not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return float("inf")
    return float(np.abs(np.nan_to_num(ours) - np.nan_to_num(theirs)).max())


class Golden:
    """One stored file.

    Args:
        name: Its name, without the ending.
        assets: The folder of weights and images.

    Attributes:
        specs: Ours, in the order of the file.
        slow: Whether each is left to the long run.
        source: What the numbers were made by.
        images: How many images they are about.
    """

    def __init__(self, name: str, assets: Path) -> None:
        with np.load(FOLDER / f"{name}.npz") as stored:
            self._stored = dict(stored)
        self._assets = assets
        self.specs = [str(spec) for spec in self._stored["specs"]]
        self.slow = [bool(slow) for slow in self._stored["slow"]]
        self.source = str(self._stored["source"])
        self.images = len(self._stored["files"])

    def agreement(self, number: int) -> Agreement:
        """Measure the spec of this number and compare."""
        metric, case = parse(self.specs[number]), self.case(number)
        theirs, their_curve = self._stored[f"value_{number}"], self._stored.get(f"curve_{number}")
        measured = metric.measure(case)
        ours = metric.of_all(measured) if theirs.ndim == 0 else metric.of_each(measured)
        curve = None
        if their_curve is not None:
            assert isinstance(metric, CurveMetric)
            our_curve = metric.curve(case).responses.double().cpu().numpy()
            curve = difference(our_curve[:, -their_curve.shape[1] :], their_curve)
        return Agreement(difference(ours.double().cpu().numpy(), theirs), curve)

    def case(self, number: int) -> Case:
        """What the spec of this number judges."""
        return self._pixels if self._stored["maps"][number] == "pixels" else self._grid

    @cached_property
    def _pixels(self) -> Case:
        return self._case(enlarged(self._stored["grids"]))

    @cached_property
    def _grid(self) -> Case:
        return self._case(torch.from_numpy(self._stored["grids"]).double())

    def _case(self, maps: Tensor) -> Case:
        view = deit_tiny(self._assets)
        return Case(
            view,
            view.preprocess.batch([self._assets / name for name in self._stored["files"]]),
            maps,
            Target(torch.from_numpy(self._stored["explained"])),
            labels=torch.from_numpy(self._stored["labels"]),
            masks=self._masks(),
        )

    def _masks(self) -> Tensor | None:
        files, view = self._stored["files"], deit_tiny(self._assets)
        if "boxes" in self._stored:
            boxes = [[box[1:] for box in self._stored["boxes"] if box[0] == i] for i in range(len(files))]
            inputs = [torch.zeros(3, 224, 224)] * len(files)
            return masks_of(view.preprocess, inputs, slice(0, len(files)), None, boxes)
        if "ignored" in self._stored:
            return masks(self._assets, [str(name) for name in files], str(self._stored["ignored"]))
        return None


def masks(assets: Path, files: list[str], ignored: str) -> Tensor:
    """(N, 224, 224): the masks that lie beside images; what has no label is -1 (``out``) or 0 (``rest``)."""
    preprocess, found = deit_tiny(assets).preprocess, []
    for name in files:
        image = assets / name
        with Image.open(image.parent.parent / "masks" / f"{image.stem}.png") as file:
            mask = torch.from_numpy(np.array(file)).short()
        found.append(preprocess.mask(torch.where(mask == 255, -1, mask).to(torch.int8)))
    stacked = torch.stack(found)
    return stacked if ignored == "out" else stacked.clamp_min(0)


def enlarged(grids: np.ndarray) -> Tensor:
    """(N, 14, 14) -> (N, 224, 224) float64, bilinear, with a little noise against ties."""
    maps = F.interpolate(torch.from_numpy(grids).double()[:, None], (224, 224), mode="bilinear")[:, 0]
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(maps.shape))
    return maps + NOISE * maps.abs().amax((1, 2), keepdim=True) * noise


def names() -> list[str]:
    """The files of authors' numbers."""
    found = []
    for path in sorted(FOLDER.glob("*.npz")):
        with np.load(path) as stored:
            if "specs" in stored and "grids" in stored:
                found.append(path.stem)
    return found
