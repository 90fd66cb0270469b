"""The loop: an explainer learns to rank. Stopped anywhere, it goes on as if it had not been."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.data import Item
from vitrail.errors import InputError
from vitrail.method import Explainer
from vitrail.method.aha import POWERS, Grid, Losses, at_once, brought, marks, misfits, rank_entropy
from vitrail.model import Target, View
from vitrail.perturb import Baseline, baseline
from vitrail.train.pictures import Draw, Pictures, centre, cut, draws, numbers_drawn
from vitrail.train.plan import Training

FEWEST = 8
"""Pictures that a training needs, at least: some to learn from, some to look at."""

REFERENCES = ("black_pixel", "dataset_mean", "rise_blur(kernel=31, sigma=10)")
"""What stands where a picture is hidden: as the paper judges, black, the mean colour and a blur."""

LOSSES = Losses._fields
"""What a step tells, in this order."""

CELLS, STEPS = 14, 16
"""The grid and the number of steps of the hard metrics on held-out pictures."""


class Seen(NamedTuple):
    """What a step looks at: images, what stands where they are hidden, the classes and the encoder's features."""

    images: Tensor
    references: Tensor
    classes: Tensor
    features: list[Tensor]


class Looked(NamedTuple):
    """What held-out pictures say of an explainer's maps.

    Attributes:
        difference: Hard insertion minus deletion, the mean over pictures and references.
        contrast: The power by which the maps say how much of the answer there is: `Explainer.magnitudes`.
    """

    difference: float
    contrast: float


class Learner:
    """An explainer, its optimiser, and the pictures; on one of several devices.

    Args:
        view: The target.
        items: The pictures.
        training: The settings.
        fabric: Lightning's, launched.
    """

    def __init__(self, view: View, items: Sequence[Item], training: Training, fabric: Any) -> None:
        if len(items) < FEWEST:
            raise InputError(f"training needs {FEWEST} pictures or more, but --data has {len(items)}; give more")
        cells, most = training.cells[1], min(view.size) // 2
        if cells > most:
            height, width = view.size
            raise InputError(f"--cells must be at most {most} for {height} x {width} pixels, but {cells} was given")
        if training.batch % fabric.world_size:
            raise InputError(
                f"--batch {training.batch} cannot be shared evenly by {fabric.world_size} processes; "
                f"give a multiple of {fabric.world_size}"
            )
        self.view, self.training, self.fabric = view, training, fabric
        count = min(training.held, max(2, len(items) // 10))
        kept = _spread(len(items), count)
        others = sorted(set(range(len(items))) - set(kept))
        learned = _spread(len(others), min(training.limit or len(others), len(others)))
        self.pictures = Pictures([items[others[i]] for i in learned], view.size, self._mark)
        self.held = Pictures([items[i] for i in kept], view.size, self._mark)
        self.baselines: list[Baseline] = [baseline(spec) for spec in REFERENCES]
        torch.manual_seed(training.seed)  # the decoder's first weights
        self.explainer = Explainer.for_view(
            view,
            encoder=training.encoder,
            channels=training.channels,
            evidence=False if training.evidence == "off" else None,
        )
        own = [weight for weight in self.explainer.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(own, lr=training.rate, weight_decay=training.decay)
        self.model, self.optimiser = fabric.setup(self.explainer.to(fabric.device), optimiser)

    def read(self, first: int, *, progress: bool = False) -> None:
        """Read the pictures before they are needed; those to learn from only if each will be.

        Args:
            first: The next step.
            progress: Show a progress line.
        """
        self.held.load(self.fabric.device)
        if (self.training.steps - first) * self.training.batch >= len(self.pictures):
            self.pictures.load(self.fabric.device, progress=progress)

    # ------------------------------------------------------------------------------------------------------ a step

    def step(self, number: int) -> Tensor:
        """Learn from one batch: (4,) the `LOSSES`, over all processes. They are not waited for here."""
        training = self.training
        share = training.batch // self.fabric.world_size
        first = self.fabric.global_rank * share
        whole = draws(
            len(self.pictures),
            training.batch,
            training.seed,
            number,
            others=training.others,
            references=len(REFERENCES),
        )
        seen = self._see(whole[first : first + share])
        chance = torch.Generator().manual_seed(_mixed(training.seed, number))
        grid = Grid.drawn(self.view.size, *training.cells, chance)
        self.model.train()
        maps = self.model(seen.features, seen.images, seen.classes)
        losses = training.objective.loss(
            self._asking(seen.classes),
            seen.images,
            seen.references,
            maps,
            grid,
            training.temperature(number),
            noise=training.noise(number),
            generator=chance,
            seeds=[_mixed(training.seed + 1, number * training.batch + first + i) for i in range(share)],
            at_once=at_once(self.fabric.device),
        )
        for group in self.optimiser.param_groups:
            group["lr"] = training.rate_at(number)
        self.optimiser.zero_grad()
        self.fabric.backward(losses.total.mean())
        self.fabric.clip_gradients(self.model, self.optimiser, max_norm=training.clip)
        self.optimiser.step()
        found: Tensor = self.fabric.all_reduce(torch.stack([part.detach().mean() for part in losses]), reduce_op="mean")
        return found

    def _see(self, drawn: Sequence[Draw]) -> Seen:
        squares = self.pictures.fetch([one.number for one in drawn]).to(self.fabric.device)
        images = self._normalised(cut(squares, drawn, self.view.size))
        _, classes, features = self._encoded(images, [one.rank for one in drawn])
        fills = torch.stack([fill.fill(self.view, images, Target(classes)) for fill in self.baselines])
        which = torch.tensor([one.reference for one in drawn], device=fills.device)
        return Seen(images, fills[which, torch.arange(len(drawn), device=fills.device)], classes, features)

    def _normalised(self, pixels: Tensor) -> Tensor:
        how = self.view.preprocess
        mean, std = (pixels.new_tensor(values).view(1, 3, 1, 1) for values in (how.mean, how.std))
        return (pixels - mean) / std

    def _encoded(self, images: Tensor, ranks: Sequence[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The logits, the classes at these ranks among them, and what the explainer sees for those."""
        with self.view.using(self.training.precision), self.view.still():
            sight = self.explainer.encode(self.view, images)
            logits = sight.logits.float()
            wanted = torch.tensor(ranks, device=logits.device).clamp_max(logits.shape[1] - 1)
            classes = logits.argsort(1, descending=True).gather(1, wanted[:, None])[:, 0]
            return logits, classes, [feature.float() for feature in sight.features(classes)]

    def _asking(self, classes: Tensor) -> Any:
        def ask(pictures: Tensor, which: Tensor) -> Tensor:
            with self.view.using(self.training.precision), self.view.still():
                return Target(classes[which]).probability(self.view.logits(pictures)).float()

        return ask

    # ------------------------------------------------------------------------------------------------- held-out

    def look(self) -> Looked:
        """What the pictures that are never learned from say of the explainer's maps."""
        grid, counts = self._judging()
        areas, gaps = [], []
        for numbers in torch.arange(len(self.held)).split(16):
            maps, images, logits = self.shown(numbers.tolist())
            curves = self._hard(maps, images, logits.argmax(1))
            areas.append(_areas(curves))
            shares = torch.stack([brought(each) for each in curves]).mean(0)
            gaps.append(misfits(maps, grid, counts, shares).cpu())
        deletion, insertion = torch.cat(areas).mean(0).tolist()
        return Looked(insertion - deletion, POWERS[int(torch.cat(gaps, 1).mean(1).argmin())])

    def judged(self, maps: Tensor, images: Tensor, classes: Tensor) -> Tensor:
        """(B, 2) float64, on the CPU: hard deletion and insertion of each image, means of the three references.

        Args:
            maps: (B, H, W) whoever's.
            images: (B, 3, H, W) inputs of the target.
            classes: (B,) the classes that the maps explain.
        """
        return _areas(self._hard(maps, images, classes))

    def _hard(self, maps: Tensor, images: Tensor, classes: Tensor) -> list[Tensor]:
        """(B, 2, S) for each of the three references: the curves of hard deletion and insertion."""
        ask, fills = self._asking(classes), [fill.fill(self.view, images, Target(classes)) for fill in self.baselines]
        return [self.training.objective.hard(ask, images, fill, maps, *self._judging()) for fill in fills]

    def _judging(self) -> tuple[Grid, Tensor]:
        """The grid of the hard metrics, and how many of its regions their steps hide or show."""
        grid = Grid.regular(self.view.size, CELLS)
        return grid, torch.linspace(grid.count / STEPS, grid.count, STEPS).round().long()

    def scores(self) -> Tensor:
        """(held-out pictures, cells): the explainer's maps, pooled over the grid of the hard metrics."""
        grid = Grid.regular(self.view.size, CELLS)
        parts = torch.arange(len(self.held)).split(16)
        return torch.cat([grid.pool(self.shown(numbers.tolist())[0]) for numbers in parts])

    def entropy(self, number: int, scores: Tensor) -> float:
        """How little the scores say of the ranks at the temperature of a step: 1 where they are all the same."""
        return float(rank_entropy(scores, self.training.temperature(number)).mean())

    def shown(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Maps of the predicted classes of some held-out pictures, the model inputs, and the logits."""
        squares = self.held.fetch(numbers).to(self.fabric.device)
        images = self._normalised(centre(squares, self.view.size))
        logits, classes, features = self._encoded(images, [0] * len(images))
        self.explainer.eval()
        with torch.no_grad():
            return self.explainer(features, images, classes).float(), images, logits

    # ----------------------------------------------------------------------------------------------------- to keep

    def _mark(self, picture: Image.Image) -> int:
        how = self.view.preprocess
        return int(marks(how, how.tensor(picture)[None]))

    def marks(self, steps: int) -> Tensor:
        """The marks of the pictures that so many steps learned from, and of those held out."""
        numbers = numbers_drawn(len(self.pictures), self.training.batch, self.training.seed, steps)
        return torch.tensor(self.pictures.marked(numbers) + self.held.marked(range(len(self.held))))

    def state(self) -> dict[str, Any]:
        """What the next step depends on, besides its number: learned weights and the optimiser's memory; and marks."""
        return {
            "weights": dict(_weights(self.explainer)),
            "optimiser": self.optimiser.state_dict(),
            "marks": dict(self.pictures.marks),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Be as when `state` was called."""
        with torch.no_grad():
            for name, weight in _weights(self.explainer).items():
                weight.copy_(state["weights"][name])
        self.optimiser.load_state_dict(state["optimiser"])
        self.pictures.marks |= state.get("marks", {})


def _areas(curves: Sequence[Tensor]) -> Tensor:
    """(B, 2, S) curves of each reference -> (B, 2) their means, float64, on the CPU."""
    return torch.stack([each.cpu().double().mean(2) for each in curves]).mean(0)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _spread(total: int, count: int) -> list[int]:
    """``count`` numbers below ``total``, evenly spread, the first and the last among them."""
    return sorted({round(i * (total - 1) / max(count - 1, 1)) for i in range(count)})


def _mixed(seed: int, number: int) -> int:
    """A seed of its own for every step."""
    return (seed * 1_000_003 + number) % 2**62
