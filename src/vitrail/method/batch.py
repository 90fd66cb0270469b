"""The images that a method explains, what is to be explained about each, and what it says of the maps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.model import Target, View, full, in_parts, is_finite, widest

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


@dataclass
class Clean:
    """What all batches of the same images know of the clean ones.

    Attributes:
        logits: (B, classes).
        seen: Whether they went through the model for it, and the logits were not just given.
    """

    logits: Tensor | None
    seen: bool = False


class Batch:
    """Some images on the model's device, and what is to be explained about each.

    Args:
        images: (B, 3, H, W) model inputs.
        target: What to explain; what the model predicts by default.
        keys: (B,) int64 what random numbers depend on; the images themselves by default.
        logits: (B, classes) the model's answers to the clean images, where they are known.

    Attributes:
        images: (B, 3, H, W) model inputs.
        remarks: What is said of the maps, shared with the batches made from this one.
    """

    def __init__(
        self, images: Tensor, target: Target | None = None, keys: Tensor | None = None, logits: Tensor | None = None
    ) -> None:
        self.images = images
        self._clean = Clean(None if logits is None else full(logits.to(images.device)))
        # Now, while the device has nothing to do: behind a forward pass the copy would wait for it.
        self._target = None if target is None else target.to(images.device)
        self._keys = keys
        self.remarks = Remarks.none(len(images), images.device)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def logits(self) -> Tensor | None:
        """(B, classes) of the clean images, once some forward pass has shown them."""
        return self._clean.logits

    def forget_clean(self) -> "Clean":
        """Return what is known of the clean images, which counts as not seen until a method passes them again."""
        self._clean.seen = False
        return self._clean

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

    def learn(self, logits: Tensor) -> Target:
        """Keep the clean images' logits, so that nobody asks for them again, and return what is to be explained.

        A method that begins with a clean pass of its own tells its logits here.
        """
        clean = self._clean
        clean.seen = True
        if clean.logits is None:
            clean.logits = full(logits.detach())
        if self._target is None:
            self._target = Target(clean.logits.argmax(1))
        return self._target

    def check(self) -> None:
        """Refuse clean logits that are not numbers. This waits for the device, so `learn` leaves it to the end."""
        if self.logits is not None and not is_finite(self.logits):
            raise InputError(
                "the model's answer is not a number (NaN or infinite) for at least one image; "
                "check its weights and the input normalisation"
            )

    def aim(self, view: View) -> Target:
        """Return what is to be explained; only a target that is yet to be predicted costs a pass."""
        return self.settle(view) if self._target is None else self._target

    def settle(self, view: View) -> Target:
        """Return what is to be explained; the clean images go through the model unless their logits are known."""
        if self.logits is None:
            with torch.no_grad():
                self.learn(view.logits(self.images))
        if self._target is None:
            assert self.logits is not None
            self._target = Target(self.logits.argmax(1))
        return self._target

    @property
    def target(self) -> Target:
        """The target, once it is settled."""
        assert self._target is not None
        return self._target

    def generator(self, i: int, seed: int) -> torch.Generator:
        """Random numbers for image ``i`` that depend on the seed and the picture alone, not on its place in a batch."""
        key = int(self.keys[i]) ^ (seed * 0x9E3779B97F4A7C15)
        return torch.Generator().manual_seed(key & 0x7FFFFFFFFFFFFFFF)

    def aimed(self, target: Target | None, *, apart: bool = False) -> "Batch":
        """The very same images, explained for another target.

        Args:
            target: The target.
            apart: Whether what is said of its map is said of that one alone.
        """
        other = Batch(self.images, target, self._keys)
        other._clean = self._clean
        if not apart:
            other.remarks = self.remarks
        return other

    def take(self, rows: Tensor) -> "Batch":
        """Some of the images, with what is known of them."""
        where = rows.to(self.images.device)
        target = None if self._target is None else self._target.take(where)
        logits = None if self.logits is None else self.logits[where]
        return Batch(self.images[where], target, None if self._keys is None else self._keys[rows.cpu()], logits)

    @property
    def keys(self) -> Tensor:
        """(B,) int64 numbers that tell the images apart."""
        if self._keys is None:
            self._keys = checksum(self.images)
        return self._keys

    def beside(self, images: Tensor) -> "Batch":
        """Changed copies of the same images: same target, same random numbers."""
        return besides([self], images)[0]

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


def besides(batches: Sequence[Batch], images: Tensor) -> list[Batch]:
    """Changed copies of the images of several batches, which are the same but for their targets."""
    found: list[Batch] = []
    for batch in batches:
        other = Batch(images, batch._target, batch.keys)
        other.remarks = batch.remarks
        if found:
            other._clean = found[0]._clean
        found.append(other)
    return found


def clean_logits(batch: Batch) -> Tensor:
    """(B, classes) of the clean images of a batch that is settled."""
    assert batch.logits is not None
    return batch.logits


def checksum(images: Tensor) -> Tensor:
    """(B,) integers that tell pictures apart; computed in whole numbers, hence the same on every device."""
    bits = images.detach().float().contiguous().flatten(1).view(torch.int32).long()
    weights = (torch.arange(bits.shape[1], device=bits.device) * 2654435761 + 1013904223) | 1
    return (bits * weights).sum(1).cpu()
