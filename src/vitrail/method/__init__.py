"""Ways to explain: one idea, one file."""

from vitrail.method.attention import AttIxG, GenAtt, GradRollout, RawAttention, Rollout
from vitrail.method.base import METHODS, Batch, Method, describe, methods, register
from vitrail.method.cam import GradCAM
from vitrail.method.decompx import DecompX
from vitrail.method.gradient import InputXGradient, IntegratedGradients, Saliency, SmoothGrad
from vitrail.method.layered import Layered, Mixing
from vitrail.method.plus import CAT, AttCAT, GradSAM, Plus, SkipPlus
from vitrail.method.random import Random
from vitrail.method.spec import parse
from vitrail.method.var import VAR

__all__ = [
    "CAT",
    "METHODS",
    "VAR",
    "AttCAT",
    "AttIxG",
    "Batch",
    "DecompX",
    "GenAtt",
    "GradCAM",
    "GradRollout",
    "GradSAM",
    "InputXGradient",
    "IntegratedGradients",
    "Layered",
    "Method",
    "Mixing",
    "Plus",
    "Random",
    "RawAttention",
    "Rollout",
    "Saliency",
    "SkipPlus",
    "SmoothGrad",
    "describe",
    "methods",
    "parse",
    "register",
]
