"""AHA: learn to rank. The method, the explainer that it uses, and what that is trained by."""

from vitrail.method.aha.contrast import POWERS, brought, misfits
from vitrail.method.aha.known import marks
from vitrail.method.aha.method import AHA
from vitrail.method.aha.objective import Grid, Losses, Objective, at_once
from vitrail.method.aha.sinkhorn import rank_entropy

__all__ = ["AHA", "POWERS", "Grid", "Losses", "Objective", "at_once", "brought", "marks", "misfits", "rank_entropy"]
