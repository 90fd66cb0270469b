"""AHA: learn to rank. The method, the explainer that it uses, and what that is trained by."""

from vitrail.method.aha.method import AHA
from vitrail.method.aha.objective import Grid, Objective

__all__ = ["AHA", "Grid", "Objective"]
