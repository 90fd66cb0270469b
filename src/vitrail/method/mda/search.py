"""MDA's search for an order of patches: by insertion until the answer is back, then by deletion, all images in step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.perturb import Responder, ranks_of

BLURRED, BLANK = 0, 1
"""The canvas's fills: what insertion starts from, and what deletion ends at."""


@dataclass
class Found:
    """An order for each image, and the responses along it.

    Attributes:
        order: (B, N) the patches, the most important first.
        inserted: (B,) how many of them were found by insertion.
        insertion: (B, N + 1) responses to the first k patches over the blurred image.
        deletion: (B, N + 1) responses to all but the first k patches over the blank one.
    """

    order: Tensor
    inserted: Tensor
    insertion: Tensor
    deletion: Tensor


class Search:
    """The state of all images. Each round every image gets one patch, whatever stage it is in.

    Args:
        ask: The responder; its canvas has the fills above.
        ranks: (B, N) the place of each patch in the seed's order, 0 for the most important.
        window: How many candidates are tried a round.
        ends: (B,) responses to the blurred, the blank and the whole image.
        until: (B,) insertion goes on until a response reaches this. Not a number: no insertion at all.
        late: The authors' code forgets most of what it inserted when that stops among the last ``window`` patches;
            with this switch so does the search.
    """

    def __init__(
        self,
        ask: Responder,
        ranks: Tensor,
        window: int,
        ends: tuple[Tensor, Tensor, Tensor],
        until: Tensor,
        late: bool = False,
    ) -> None:
        self.ask, self.ranks, self.window, self.until, self.late = ask, ranks, window, until, late
        count, self.patches = ranks.shape
        self.inserting = ~until.isnan()
        self.shown = torch.zeros_like(ranks, dtype=torch.bool)
        self.taken = torch.zeros_like(self.shown)
        self.inserted = torch.zeros(count, dtype=torch.long, device=ranks.device)
        self.pasted = torch.zeros_like(self.inserted)
        self.first = torch.zeros_like(ranks)  # patches by insertion, the most important first
        self.last = torch.zeros_like(ranks)  # patches by deletion, the least important first
        blurred, blank, whole = ends
        self.insertion, self.deletion = (whole.new_full((count, self.patches + 1), torch.nan) for _ in range(2))
        self.insertion[:, 0], self.insertion[:, -1] = blurred, whole
        self.deletion[:, 0], self.deletion[:, -1] = whole, blank

    def run(self) -> Found:
        """Search to the end, and fill the gaps in the curves."""
        rows = torch.arange(len(self.ranks), device=self.ranks.device)
        for left in range(self.patches, 0, -1):
            self._round(rows, min(self.window, left))
        while self.late and len(rows := (self.inserted + self.pasted < self.patches).nonzero().squeeze(1)):
            self._round(rows, min(self.window, self.patches))
        place = torch.arange(self.patches, device=self.ranks.device).expand_as(self.first)
        order = torch.where(place < self.inserted[:, None], self.first, self.last.flip(1))
        self._fill_the_gaps(ranks_of(order))
        return Found(order, self.inserted, self.insertion, self.deletion)

    def _round(self, rows: Tensor, tried: int) -> None:
        """Try some patches in each of the images ``rows``, and keep the best one."""
        inserting, taken = self.inserting[rows], self.taken[rows]
        # Insertion tries the seed's best that are left, deletion its worst.
        wish = torch.where(inserting[:, None], self.ranks[rows], self.patches - 1 - self.ranks[rows])
        candidates = (wish + self.patches * taken).topk(tried, largest=False, sorted=True).indices
        shown = self.shown[rows][:, None].repeat(1, tried, 1).scatter_(2, candidates[:, :, None], True)
        fill = torch.where(inserting, BLURRED, BLANK)
        scores = self.ask(rows.repeat_interleave(tried), shown.flatten(0, 1), fill.repeat_interleave(tried)).view(
            len(rows), tried
        )
        # Of equal candidates the first wins; what is taken, or not a number, never does while there is another.
        quality = torch.where(inserting[:, None], scores, -scores).nan_to_num(-torch.inf, torch.inf, -torch.inf)
        best = quality.masked_fill(taken.gather(1, candidates), -torch.inf).argmax(1, keepdim=True)
        self._keep(rows, inserting, candidates.gather(1, best), scores.gather(1, best))

    def _keep(self, rows: Tensor, inserting: Tensor, patch: Tensor, score: Tensor) -> None:
        """Show one more patch in each of the images, and go over to deletion where the answer is back."""
        self.shown[rows] = self.shown[rows].scatter(1, patch, True)
        self.taken[rows] = self.taken[rows].scatter(1, patch, True)
        inserted, pasted = self.inserted[rows], self.pasted[rows]
        mine, others = inserting[:, None], ~inserting[:, None]
        at, end = inserted.clamp_max(self.patches - 1)[:, None], pasted.clamp_max(self.patches - 1)[:, None]
        _put(self.first, rows, at, patch, mine)
        _put(self.last, rows, end, patch, others)
        _put(self.insertion, rows, at + 1, score, mine)
        _put(self.deletion, rows, self.patches - 1 - end, score, others)
        self.inserted[rows] = inserted = inserted + inserting.long()
        self.pasted[rows] = pasted + (~inserting).long()
        reached = inserting & (score.squeeze(1) >= self.until[rows])
        self.inserting[rows] = inserting & ~reached
        if self.late:
            self._forget(rows, reached & (inserted > self.patches - self.window))
        self.shown[rows] &= ~reached[:, None]

    def _forget(self, rows: Tensor, late: Tensor) -> None:
        """Keep of what these images inserted only as many as they are past the last full window."""
        kept = torch.where(late, self.inserted[rows] - (self.patches - self.window), self.inserted[rows])
        place = torch.arange(self.patches, device=rows.device)[None]
        gone = late[:, None] & (place >= kept[:, None]) & (place < self.inserted[rows][:, None])
        free = torch.zeros_like(self.first[rows]).scatter_add(1, self.first[rows], gone.long())
        self.taken[rows] &= free == 0
        curve = self.insertion[rows]
        curve[:, 1:-1][gone[:, :-1]] = torch.nan
        self.insertion[rows] = curve
        self.inserted[rows] = kept

    def _fill_the_gaps(self, ranks: Tensor) -> None:
        """Ask for those points of both curves that the search did not come by."""
        for curve, fill in ((self.insertion, BLURRED), (self.deletion, BLANK)):
            which, k = self._gaps(curve, fill).nonzero(as_tuple=True)

            def shown(part: slice, which: Tensor = which, k: Tensor = k, fill: int = fill) -> Tensor:
                among_the_first = ranks[which[part]] < k[part, None]
                return among_the_first if fill == BLURRED else ~among_the_first

            curve[which, k] = self.ask(which, shown, fill).to(curve.dtype)

    def _gaps(self, curve: Tensor, fill: int) -> Tensor:
        """Where nothing was asked yet; a response that is not a number is one all the same."""
        k = torch.arange(self.patches + 1, device=curve.device)
        inside = (k > 0) & (k < self.patches)
        beyond = k > self.inserted[:, None] if fill == BLURRED else k < self.inserted[:, None]
        return inside & beyond


def _put(table: Tensor, rows: Tensor, columns: Tensor, values: Tensor, where: Tensor) -> None:
    """table[rows, columns] = values, for the rows where it holds."""
    before = table[rows]
    table[rows] = before.scatter(1, columns, torch.where(where, values.to(table.dtype), before.gather(1, columns)))
