"""Does a map foretell what random changes of the picture do to the answer?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.fields import PASSES, number, random_seed
from vitrail.method import Batch
from vitrail.metric.base import Metric, register
from vitrail.metric.case import Answers, Case, Enlarge, Sign, Whose
from vitrail.metric.similarity import pearson
from vitrail.perturb import Baseline, Canvas, PixelCanvas, Score, ZeroNorm, cell_canvas

Draw = Callable[[Tensor, Tensor], Tensor]
"""Images (M,) and numbers of samples (M,) -> (M, H * W): how much of a change each pixel gets."""


def infidelity(foretold: Tensor, drops: Tensor, normalise: bool = False) -> Tensor:
    """The mean squared difference between what a map foretells of K changes and what they do.

    Args:
        foretold: (B, K) the sum over the pixels of change times map.
        drops: (B, K) the answer to the image less that to its changed copy.
        normalise: Scale each map first by the factor that suits it best; an empty map foretells nothing.

    Returns:
        (B,) float64.

    Example:
        >>> foretold, drops = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 5.0]])
        >>> infidelity(foretold, drops).tolist()
        [5.0]
        >>> infidelity(foretold, drops, normalise=True).round(decimals=6).tolist()
        [0.1]
    """
    foretold, drops = foretold.double(), drops.double()
    if normalise:
        squares = foretold.square().sum(1, keepdim=True)
        best = (foretold * drops).sum(1, keepdim=True) / torch.where(squares > 0, squares, 1)
        foretold = best * foretold
    return (foretold - drops).square().mean(1)


def inside(corners: Tensor, length: int, size: tuple[int, int]) -> Tensor:
    """(M, 2) tops and lefts of squares -> (M, H * W) booleans: the pixels in them."""
    rows, columns = (
        (place >= first[:, None]) & (place < first[:, None] + length)
        for first, place in zip(corners.unbind(1), (torch.arange(side, device=corners.device) for side in size))
    )
    return (rows[:, :, None] & columns[:, None, :]).flatten(1)


@register("infidelity", "Yeh et al. 2019", higher_is_better=False)
@dataclass(frozen=True)
class Infidelity(Metric):
    """The mean squared difference between what a map foretells of random changes and what they do to the answer.

    A change is the same on all channels, and a map of one channel stands for the sum over the three (each has a third
    of it). A coarse value stands for the sum over its cell: a map keeps its total when it gets the picture's size.

    Attributes:
        samples: Changes of each image.
        perturbation: ``square`` hides a random square, and the map is read as what each pixel contributes (Captum's
            ``multiply_by_inputs``); ``gaussian`` subtracts noise, and the map is read as a gradient.
        baseline: What stands where a square is hidden.
        side: Length of the squares, as a share of the picture's shorter side.
        sigma: Standard deviation of the noise, in model inputs.
        normalise: Scale each map by the factor that suits it best, since most maps have no unit of their own.
        score: The target's logit or its probability.
        target: The class whose answer counts.
        enlarge: How the map gets the picture's size.
        seed: Another seed draws other changes.
    """

    samples: int = number(64, low=1, high=10_000, cost=PASSES)
    perturbation: Literal["square", "gaussian"] = "square"
    baseline: Baseline = ZeroNorm()
    side: float = number(0.25, above=0, high=1)
    sigma: float = number(0.2, low=0, high=1000)
    normalise: bool = True
    score: Score = "logit"
    target: Whose = "explained"
    enlarge: Enlarge = "auto"
    seed: int = random_seed()

    def __post_init__(self) -> None:
        if self.perturbation == "square":
            self.refuse_unread("perturbation=square", "adds no noise", ["sigma"], "use perturbation=gaussian")
        else:
            self.refuse_unread("perturbation=gaussian", "hides no squares", ["baseline", "side"])

    def measure(self, case: Case) -> Tensor:
        case.classes(self.target)
        canvas, draw = self._squares(case) if self.perturbation == "square" else self._noise(case)
        share = case.maps[0].numel() / (case.size[0] * case.size[1])
        heat = share * case.heat("signed", self.enlarge).flatten(1).double()
        with case.view.still(turns=True):  # never in inference mode, whose tensors cannot be written to below
            foretold = heat.new_empty(len(case), self.samples)

        def shown(which: Tensor, number: Tensor) -> Tensor:
            change = draw(which, number)
            # Noted here, so that no change is drawn twice.
            foretold[which, number] = (change * heat[which]).sum(1)
            return 1 - change if change.is_floating_point() else ~change

        answers = case.ask(canvas, shown, self.samples)
        return infidelity(foretold, _drops(case, answers, self.score, self.target), self.normalise)

    def _squares(self, case: Case) -> tuple[Canvas, Draw]:
        length = max(1, round(self.side * min(case.size)))
        generators = _generators(case, self.seed)
        corners = torch.stack([draw_corners(case.size, length, self.samples, own) for own in generators])
        corners = corners.to(case.view.device)
        canvas = PixelCanvas(case.view, case.images, [case.fill(self.baseline)])
        return canvas, lambda which, number: inside(corners[which, number], length, case.size)

    def _noise(self, case: Case) -> tuple[Canvas, Draw]:
        # A seed for each change: whatever part is asked for, and however often, it is the same.
        generators = _generators(case, self.seed)
        seeds = torch.stack([torch.randint(2**62, (self.samples,), generator=own) for own in generators])

        def draw(which: Tensor, number: Tensor) -> Tensor:
            own = (torch.Generator().manual_seed(seed) for seed in seeds[which.cpu(), number.cpu()].tolist())
            pixels = case.size[0] * case.size[1]
            return self.sigma * torch.stack([torch.randn(pixels, generator=g) for g in own]).to(case.images)

        # Over the image less one, what is not shown of a pixel is subtracted from it.
        return PixelCanvas(case.view, case.images, [case.images - 1]), draw


def draw_corners(size: tuple[int, int], length: int, samples: int, generator: torch.Generator) -> Tensor:
    """(samples, 2): the tops and lefts of random squares that lie within the picture."""
    return torch.stack([torch.randint(side - length + 1, (samples,), generator=generator) for side in size], 1)


def draw_subsets(cells: int, hidden: int, samples: int, generator: torch.Generator) -> Tensor:
    """(samples, cells) booleans: random sets of so many cells."""
    return torch.rand(samples, cells, generator=generator).argsort(1).argsort(1) < hidden


@register("faithfulness_correlation", "Bhatt et al. 2020", higher_is_better=True)
@dataclass(frozen=True)
class FaithfulnessCorrelation(Metric):
    """Pearson's correlation, over random sets of patches, of the map's sum and what the answer loses without them.

    Whole patches, and a tenth of them: a few single pixels change so little that the correlation would be noise. A
    constant map has none, 0. With 500 sets the number of a random map still strays by 0.045.

    Attributes:
        samples: Random sets of each image.
        share: The share of the patches in a set, at least one.
        baseline: What stands where they are hidden.
        score: The target's logit or its probability.
        sign: What of the map is summed.
        target: The class whose answer counts.
        seed: Another seed draws other sets.
    """

    samples: int = number(500, low=2, high=10_000, cost=PASSES)
    share: float = number(0.1, above=0, below=1)
    baseline: Baseline = ZeroNorm()
    score: Score = "logit"
    sign: Sign = "signed"
    target: Whose = "explained"
    seed: int = random_seed()

    def measure(self, case: Case) -> Tensor:
        case.classes(self.target)
        cells = case.cells(self.sign).double()
        count = max(1, round(self.share * cells.shape[1]))
        generators = _generators(case, self.seed)
        hidden = torch.stack([draw_subsets(cells.shape[1], count, self.samples, own) for own in generators])
        hidden = hidden.to(case.view.device)
        canvas = cell_canvas(case.view, case.images, [case.fill(self.baseline)])
        answers = case.ask(canvas, lambda which, number: ~hidden[which, number], self.samples)
        # All sets are equally large, so a shift changes nothing; it makes the sums of a constant map exactly equal.
        cells = cells - cells.amin(1, keepdim=True)
        sums = torch.einsum("bkn,bn->bk", hidden.double(), cells)
        return pearson(sums, _drops(case, answers, self.score, self.target))


def _generators(case: Case, seed: int) -> list[torch.Generator]:
    """Random numbers of each image's own."""
    batch = Batch(case.images)
    return [batch.generator(i, seed) for i in range(len(batch))]


def _drops(case: Case, answers: Answers, score: Score, whose: Whose) -> Tensor:
    """(B, K): the answer to the image less those to its copies."""
    if score == "probability":
        return case.clean.probability[whose] - answers.probability[whose]
    return case.clean.logit[whose] - answers.logit[whose]
