"""Which method to use on a user's own model and pictures: `choose` measures, `verdict` says what follows."""

from vitrail.bench.recommend.choose import recommend
from vitrail.bench.recommend.verdict import FLOOR, Candidate, Recommendation

__all__ = ["FLOOR", "Candidate", "Recommendation", "recommend"]
