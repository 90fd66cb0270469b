"""Engines do the work of a run: in this process, or on a Ray cluster. Both give the same table."""

from vitrail.bench.engines.local import Local
from vitrail.bench.engines.ray import Ray

__all__ = ["Local", "Ray"]
