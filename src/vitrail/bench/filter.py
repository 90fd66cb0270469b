"""Which pictures take part: the papers leave out what the model gets wrong, is not sure of, or still sees blurred."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import torch

from vitrail.bench.chunk import Chunk
from vitrail.data import Item
from vitrail.errors import InputError
from vitrail.model import Target, View, full
from vitrail.perturb import AdaptiveBlur


@dataclass(frozen=True)
class Filter:
    """What a picture must fulfil; nothing by default.

    Attributes:
        correct: The model predicts a true class.
        confidence: The probability of the predicted class, at least.
        recognised: The probability of the true class, at least.
        blurs: A blur can be found that takes the predicted class below 1 %, see `adaptive_blur`.
        area: The share of the picture that the object's mask covers, at least.
        per_class: So many pictures at most of each predicted class, the first ones.

    Example:
        >>> Filter(correct=True, confidence=0.6).given
        {'correct': True, 'confidence': 0.6}
    """

    correct: bool = False
    confidence: float = 0.0
    recognised: float = 0.0
    blurs: bool = False
    area: float = 0.0
    per_class: int | None = None

    def __post_init__(self) -> None:
        shares = {"confidence": self.confidence, "recognised": self.recognised, "area": self.area}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise InputError(f"the filter's {name} must lie between 0 and 1, but {value} was given")
        if self.per_class is not None and self.per_class < 1:
            raise InputError(f"the filter's per_class must be 1 or more, but {self.per_class} was given")

    @property
    def given(self) -> dict[str, Any]:
        """What is asked for, without what is not."""
        return {key: value for key, value in asdict(self).items() if value}

    def table(self, view: View, chunk: Chunk) -> pa.Table:
        """One row a picture: what the model predicts, and why it is left out, if it is."""
        reasons: dict[int, str] = {}
        whole = chunk.whole
        fading = self._blurred(view, chunk) if self.blurs and whole else torch.zeros(len(chunk.rows))
        for i in whole:
            row, probabilities = chunk.rows[i], chunk.logits[i].softmax(0)
            sure, right = float(probabilities.max()), row.item.accepted
            known = max((float(probabilities[c]) for c in right), default=0.0)
            if self.correct and row.predicted not in right:
                reasons[i] = "left out: the model gets it wrong" if right else "left out: its class is not known"
            elif sure < self.confidence:
                reasons[i] = f"left out: the model is sure to {sure:.2g} only, {self.confidence:g} is asked for"
            elif known < self.recognised:
                reasons[i] = f"left out: the true class has {known:.2g} only, {self.recognised:g} is asked for"
            elif self.area and chunk.covered(i) < self.area:
                reasons[i] = f"left out: the object covers {chunk.covered(i):.2g} only, {self.area:g} is asked for"
            elif fading[i] > AdaptiveBlur().below:
                reasons[i] = f"left out: the model still sees it when it is blurred, with {float(fading[i]):.2g}"
        records = [
            {"image": row.item.name, "error": row.error or reasons.get(i), "predicted": row.predicted}
            for i, row in enumerate(chunk.rows)
        ]
        return pa.Table.from_pylist(records, schema=SCHEMA)

    def _blurred(self, view: View, chunk: Chunk) -> torch.Tensor:
        """(images,) the probability of the predicted class under the strongest blur that was tried."""
        found = torch.zeros(len(chunk.rows))
        target = Target(chunk.logits[chunk.whole].argmax(1)).to(view.device)
        images = chunk.inputs[chunk.whole].to(view.device, view.dtype)
        with view.still(turns=True), torch.no_grad():
            blurred = AdaptiveBlur().fill(view, images, target)
            found[chunk.whole] = target.probability(full(view.logits(blurred))).float().cpu()
        return found

    def chosen(self, items: Sequence[Item], records: Sequence[dict[str, Any]]) -> list[tuple[Item, str | None]]:
        """Each item that passed, or the reason why not: `per_class` is known only when all others are."""
        seen: Counter[int] = Counter()
        found = []
        for item, record in zip(items, records, strict=True):
            reason = record["error"]
            if reason is None and self.per_class is not None:
                seen[record["predicted"]] += 1
                if seen[record["predicted"]] > self.per_class:
                    reason = f"left out: {self.per_class} of its class are there already"
            found.append((item, reason))
        return found


SCHEMA = pa.schema([("image", pa.string()), ("error", pa.string()), ("predicted", pa.int32())])
