"""The response engine: what a model answers to many half-hidden copies of many images, in parts that fit memory."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from vitrail.model import Target, full, in_parts, widest
from vitrail.perturb.canvas import Canvas

Score = Literal["probability", "logit"]
"""What of the answer counts: the target class's softmax probability, or its logit. A target function of the user's own
is taken as it is."""

MOST_ON_CPU, MOST_ON_GPU = 16, 4096
"""Copies at once: more than a few fall out of a CPU's cache, a GPU starves on fewer."""

LIVE = 20
"""How many tensors as large as the input a forward pass holds at once, roughly."""


Heard: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Told of every copy's image, its score, and how far rounding leaves that open; (M,) each."""


class Responder:
    """Asks a model about copies of the images on a canvas. All images advance together.

    Args:
        canvas: The images.
        target: What is explained about each image: one target, or several, whose scores are columns then.
        score: What of the answer counts.
        most: Copies at once; as many as memory has room for by default. Halved for good when memory runs out.
        wide: Whether probabilities are float64: in float32 all those above 1 - 3e-8 are one, and an order among them is
            lost.
        heard: One for each target.
        read: What to read of the answers instead: (M, classes) logits of copies of the images (M,) -> (M,) or (M, K).
    """

    def __init__(
        self,
        canvas: Canvas,
        target: Target | Sequence[Target] = (),
        score: Score = "probability",
        *,
        most: int | None = None,
        wide: bool = True,
        heard: Sequence[Heard] = (),
        read: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.canvas, self.score, self.heard = canvas, score, tuple(heard)
        self.wide = wide
        self.several = not isinstance(target, Target)
        given = [target] if isinstance(target, Target) else list(target)
        self.targets = [one.to(canvas.view.device) for one in given]
        self.most = most or room(canvas)
        self._read = read

    def __call__(self, which: Tensor, shown: Tensor | Callable[[slice], Tensor], fill: Tensor | int = 0) -> Tensor:
        """The scores of M copies; a column a target where several were given.

        Args:
            which: (M,) the image each copy is made of.
            shown: (M, cells), see `Canvas.logits`; or a function that makes the rows of a slice when they are needed.
            fill: Which of the canvas's fills hides the rest, one for all or (M,).

        Returns:
            (M,) or (M, K), float64 for probabilities, float32 for logits (float64 from a float64 model).
        """

        def ask(part: slice) -> Tensor:
            rows = shown(part) if callable(shown) else shown[part]
            logits = self.canvas.logits(which[part], rows, fill if isinstance(fill, int) else fill[part])
            scores = self.read(full(logits), which[part])
            for k, (target, heard) in enumerate(zip(self.targets, self.heard)):
                own = scores[:, k] if self.several else scores
                loose = target.take(which[part]).rounding(logits, own, probability=self.score == "probability")
                heard(which[part], own, loose)
            return scores

        found = []
        with self.canvas.view.still(turns=True), torch.no_grad():
            for part, scores in in_parts(len(which), self.most, ask):
                found.append(scores)
                if part.stop < len(which):
                    self.most = min(self.most, part.stop - part.start)
        columns = (len(self.targets),) if self.several and self._read is None else ()
        return torch.cat(found) if found else torch.empty(0, *columns, device=which.device)

    def read(self, logits: Tensor, which: Tensor) -> Tensor:
        """The scores in logits of copies of the images ``which``."""
        if self._read is not None:
            return self._read(logits, which)
        if self.score == "probability" and self.wide:
            logits = logits.to(widest(logits.device))
        targets = [target.take(which) for target in self.targets]
        if self.score == "logit":
            scores = [target.score(logits) for target in targets]
        else:
            scores = [target.probability(logits) for target in targets]
        return torch.stack(scores, 1) if self.several else scores[0]

    def each(self, shown: Tensor, fill: int = 0) -> Tensor:
        """The scores of C copies of every image: (B, C, cells), or (C, cells) for all -> (B, C) or (B, C, K)."""
        images, device = self.canvas.images, shown.device
        copies = shown.shape[-2]
        which = torch.arange(images, device=device).repeat_interleave(copies)
        if shown.ndim == 3:
            scores = self(which, shown.flatten(0, 1), fill)
        else:
            places = torch.arange(copies, device=device).repeat(images)
            scores = self(which, lambda part: shown[places[part]], fill)
        return scores.view(images, copies, *scores.shape[1:])


def room(canvas: Canvas) -> int:
    """How many copies to push through together: a guess that running out of memory corrects.

    A power of two: with a little more or less memory free, the next call's parts are as large again, and find the
    memory and the kernels of this one's.
    """
    device = canvas.view.device
    if device.type != "cuda":
        return MOST_ON_CPU
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    size = torch.finfo(canvas.view.dtype).bits // 8
    fitting = max(16, min(MOST_ON_GPU, free // 4 // (LIVE * size * canvas.weight)))
    return 1 << (int(fitting).bit_length() - 1)
