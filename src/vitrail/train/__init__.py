"""Explainers are trained here: the settings, the loop, and the folder that a training goes on from."""

from vitrail.train.loop import Learner
from vitrail.train.pictures import joined
from vitrail.train.plan import Training, whole
from vitrail.train.report import CURVE, REPORT
from vitrail.train.run import CHECKPOINT, EXPLAINER, LOG, launched, train

__all__ = [
    "CHECKPOINT",
    "CURVE",
    "EXPLAINER",
    "LOG",
    "REPORT",
    "Learner",
    "Training",
    "joined",
    "launched",
    "train",
    "whole",
]
