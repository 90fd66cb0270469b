"""Explainers are trained here: the settings, the loop, and the folder that a training goes on from."""

from vitrail.train.loop import Learner
from vitrail.train.plan import Training
from vitrail.train.run import CHECKPOINT, EXPLAINER, LOG, REPORT, launched, train

__all__ = ["CHECKPOINT", "EXPLAINER", "LOG", "REPORT", "Learner", "Training", "launched", "train"]
