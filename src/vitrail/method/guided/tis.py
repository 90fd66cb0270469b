"""TIS: the model is asked about samples of its tokens, which its own activations choose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import PASSES, Range, number, random_seed, value
from vitrail.method.base import MAP, SharedPasses, State, register
from vitrail.method.batch import Batch
from vitrail.method.cells import asking
from vitrail.method.layered import DEEPEST
from vitrail.model import Need, View, full, in_parts
from vitrail.perturb import Canvas, RemovalCanvas, cell_canvas, counted, order_of

ROUNDS, MOVED, LOOK = 100, 1e-4, 8
"""k-means stops after so many rounds, or where an image's centroids move less (the sum of squares); only every so many
rounds the host waits for the device to learn of it."""

NUMBERS = 2**28
"""The distances a GPU holds at once: 1 GiB in float32. A CPU clusters one image at a time."""

NOISES = 16
"""Pictures of noise that take turns in the ablation."""

UNSEEN = "{spec}: {count} of {patches} patches are in none of its masks and share the map's smallest value; {remedy}"


@register(
    "tis",
    paper="Englebert et al. 2023",
    cost="1 forward a mask with half the tokens, 1 forward",
    needs=(Need.TOKENS,),
)
@dataclass(frozen=True)
class TIS(SharedPasses):
    """Transformer input sampling: how probable the target is, on average, while a token is among those kept.

    Every channel of every block's output is a picture over the patches. k-means makes ``masks`` typical pictures of
    them; each one keeps the tokens where it is brightest, and the model is asked about these alone.

    The masks are made at the model's own precision, whatever the precision of the questions.

    Attributes:
        masks: How many masks; never more than there are channels.
        keep: The share of tokens a mask keeps (0.5), or how many (98, 2 at least: a bare 1 might be either);
            several of them give ``masks`` masks each.
        layers: The blocks whose outputs are clustered, counted from 0 (-1 is the last); all of them by default.
        ablation: Keep all tokens, and put noise where patches are hidden.
        normalise: Stretch each map to 0..1.
        seed: Another seed starts k-means from other channels.
        compat: With ``authors`` a cluster that loses all its channels becomes zero everywhere, as in their code; with
            ``none`` it stays where it was.
    """

    half = True

    masks: int = number(1024, low=1, high=100_000, cost=PASSES)
    keep: int | float | tuple[int | float, ...] = number(
        0.5, above=0, high=1, whole=Range(low=2, high=100_000), most=100, note="a share of the tokens, or their number"
    )
    layers: tuple[int, ...] | None = number(None, low=-DEEPEST, high=DEEPEST - 1, most=DEEPEST)
    ablation: bool = False
    normalise: bool = value(False, stage="render")
    seed: int = random_seed()
    compat: Literal["none", "authors"] = "none"

    @property
    def shares(self) -> tuple[int | float, ...]:
        """The shares or numbers of tokens kept, also where there is only one."""
        return self.keep if isinstance(self.keep, tuple) else (self.keep,)

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(self.masks * len(self.shares) + 1)

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        batch = batches[0]
        with torch.no_grad(), view.exactly():
            points = self.points(view, batch)
            centroids = kmeans(points, self.start(points, batch), empty="zero" if self.compat == "authors" else "stay")
        return [{MAP: found} for found in self.sample(view, batches, centroids)]

    def render(self, state: State) -> Tensor:
        return stretched(state[MAP]) if self.normalise else state[MAP]

    def points(self, view: View, batch: Batch) -> Tensor:
        """(B, layers x channels, N): every channel of the blocks' outputs, over the patches."""
        trace = view.trace(batch.images, start=view.depth)
        batch.learn(trace.logits)
        batch.check()  # distances between what is not a number say nothing
        layers = range(view.depth) if self.layers is None else self.layers
        if not all(-view.depth <= layer < view.depth for layer in layers):
            raise InputError(f"{view.name} has {view.depth} blocks, but tis was given layers={self.layers}")
        outputs = torch.cat([trace.states[1:][layer].detach() for layer in layers], -1)
        return full(outputs[:, -view.layout(batch.size).patches :].transpose(1, 2).contiguous())

    def start(self, points: Tensor, batch: Batch) -> Tensor:
        """(B, masks): different channels of each image, where its centroids begin."""
        chosen = [torch.randperm(points.shape[1], generator=batch.generator(i, self.seed)) for i in range(len(batch))]
        return torch.stack(chosen)[:, : self.masks].to(points.device)

    def sample(self, view: View, batches: Sequence[Batch], centroids: Tensor) -> list[Tensor]:
        """The maps that (B, masks, N) pictures over the patches give, of each target."""
        images, masks, patches = centroids.shape
        for batch in batches:
            batch.settle(view)
        ask = asking(self._canvas(view, batches[0]), batches)
        which = torch.arange(images, device=centroids.device).repeat_interleave(masks)
        order = order_of(centroids)
        weighed = [centroids.new_zeros(images, patches) for _ in batches]
        times = centroids.new_zeros(images, patches)
        for count in self.counts(view, patches):
            kept = order[..., :count]
            shown = torch.zeros_like(centroids, dtype=torch.bool).scatter_(2, kept, True)
            if self.ablation:
                noise = torch.arange(masks, device=which.device).repeat(images) % NOISES
                scores = ask(which, shown.flatten(0, 1), noise)
            else:
                scores = ask(which, (kept if kept.shape[2] < patches else shown).flatten(0, 1))
            for own, column in zip(weighed, scores.unbind(1)):
                own += (column.view(images, masks, 1) * shown).sum(1)
            times += shown.sum(1)
        for batch in batches:
            self._tell(batch, (times == 0).sum(1), patches, masks)
        layout = view.layout(batches[0].size)
        return [view.patch_map(mean_score(own, times), layout) for own in weighed]

    def counts(self, view: View, patches: int) -> list[int]:
        """How many of the patches the masks keep, for each of `shares`."""
        found = [share if isinstance(share, int) else max(1, counted(share, patches)) for share in self.shares]
        if max(found) > patches:
            raise InputError(f"{view.name} has {patches} patches, but {self.spec} was to keep {max(found)} of them")
        return found

    def _tell(self, batch: Batch, unseen: Tensor, patches: int, masks: int) -> None:
        """Say of which maps how many patches are tied, because no mask keeps them."""
        remedy = "a larger keep reaches them" if masks < self.masks else "more masks, or a larger keep, reach them"
        for count in sorted(set(unseen.tolist()) - {0}):
            said = UNSEEN.format(spec=self.spec, count=count, patches=patches, remedy=remedy)
            batch.note(said, unseen == count)

    def _canvas(self, view: View, batch: Batch) -> Canvas:
        if not self.ablation:
            return RemovalCanvas(view, batch.images)
        shape = (NOISES, *batch.images.shape[1:])
        noise = [torch.rand(shape, generator=batch.generator(i, self.seed + 1)) for i in range(len(batch))]
        return cell_canvas(view, batch.images, list(torch.stack(noise, 1).to(batch.images)))


def kmeans(points: Tensor, start: Tensor, empty: Literal["stay", "zero"] = "stay") -> Tensor:
    """Lloyd's algorithm on many images at once, with the same result as one by one.

    Args:
        points: (B, P, N), of each image.
        start: (B, K) the points where the centroids begin.
        empty: What becomes of a centroid that no point is nearest to.

    Returns:
        (B, K, N) centroids.
    """
    images, count, _ = points.shape
    together = 1 if points.device.type == "cpu" else max(1, NUMBERS // (count * start.shape[1]))
    return torch.cat(
        [found for _, found in in_parts(images, together, lambda part: _lloyd(points[part], start[part], empty))]
    )


def _lloyd(points: Tensor, start: Tensor, empty: str) -> Tensor:
    centroids = points.gather(1, start[:, :, None].expand(-1, -1, points.shape[2]))
    moving = torch.ones(len(points), 1, 1, dtype=torch.bool, device=points.device)
    for i in range(ROUNDS):
        # The nearest by |p - c|^2, less |p|^2, which is the same for all centroids.
        distances = torch.baddbmm(centroids.pow(2).sum(2)[:, None], points, centroids.transpose(1, 2), alpha=-2)
        sums, counts = cluster_sums(points, distances.argmin(2), centroids.shape[1])
        means = sums / counts.clamp_min(1)
        if empty == "stay":
            means = torch.where(counts > 0, means, centroids)
        moved = (means - centroids).pow(2).sum((1, 2), keepdim=True)
        centroids = torch.where(moving, means, centroids)  # an image at rest stays as it is
        moving = moving & (moved >= MOVED)
        if i % LOOK == LOOK - 1 and not moving.any():
            break
    return centroids


def cluster_sums(points: Tensor, labels: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """The sum of the points of each cluster, always added up in the same order, and their number.

    Args:
        points: (B, P, N).
        labels: (B, P) the cluster of each point.
        clusters: How many clusters there are.

    Returns:
        (B, clusters, N) and (B, clusters, 1).
    """
    images, _, width = points.shape
    ones = torch.ones_like(labels)
    counts = torch.zeros(images, clusters, dtype=torch.long, device=labels.device).scatter_add_(1, labels, ones)
    order = labels.argsort(dim=1, stable=True)
    sorted_points = points.gather(1, order[:, :, None].expand(-1, -1, width)).flatten(0, 1)
    sums = torch.segment_reduce(sorted_points, "sum", lengths=counts.flatten(), unsafe=True)
    return sums.view(images, clusters, width), counts[:, :, None]


def mean_score(weighed: Tensor, times: Tensor) -> Tensor:
    """(B, N) sums of scores, (B, N) numbers of masks -> the mean score of each token's masks.

    A token that no mask keeps has shown no evidence: it gets the smallest value of its image.
    """
    means = weighed / times.clamp_min(1)
    lowest = means.masked_fill(times == 0, torch.inf).amin(1, keepdim=True)
    return torch.where(times > 0, means, lowest)


def stretched(maps: Tensor) -> Tensor:
    """(B, rows, columns), each map stretched to 0..1; zero where a map is flat."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (high - low).clamp_min(torch.finfo(maps.dtype).tiny)
