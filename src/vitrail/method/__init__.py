"""Ways to explain: one idea, one file."""

from vitrail.method.attention import GenAtt, RawAttention, Rollout
from vitrail.method.base import METHODS, Batch, Method, describe, methods, register
from vitrail.method.cam import GradCAM
from vitrail.method.decompx import DecompX
from vitrail.method.gradient import InputXGradient, IntegratedGradients, Saliency, SmoothGrad
from vitrail.method.random import Random
from vitrail.method.spec import parse

__all__ = [
    "METHODS",
    "Batch",
    "DecompX",
    "GenAtt",
    "GradCAM",
    "InputXGradient",
    "IntegratedGradients",
    "Method",
    "Random",
    "RawAttention",
    "Rollout",
    "Saliency",
    "SmoothGrad",
    "describe",
    "methods",
    "parse",
    "register",
]
