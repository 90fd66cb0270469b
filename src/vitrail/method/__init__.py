"""Ways to explain: one idea, one file."""

from typing import TYPE_CHECKING, Any

from vitrail.method.aha import AHA, POWERS, Grid, Losses, Objective, at_once, brought, marks, misfits, rank_entropy
from vitrail.method.alti import ALTI
from vitrail.method.atman import AtMan
from vitrail.method.attention import AttIxG, GenAtt, GradRollout, RawAttention, Rollout
from vitrail.method.base import METHODS, Batch, Method, checksum, describe, methods, register
from vitrail.method.biattn import BiAttnHeads, BiAttnTokens
from vitrail.method.cam import AttCAM, GradCAM, GradCAMPlusPlus, HiResCAM, LayerCAM, XGradCAM, XGradCAMPlus
from vitrail.method.cam_scores import AblationCAM, EigenCAM, ScoreCAM
from vitrail.method.decompx import DecompX
from vitrail.method.fullgrad import FullGrad, FullGradPlus
from vitrail.method.gradient import InputXGradient, IntegratedGradients, Saliency, SmoothGrad
from vitrail.method.guided import GuidedBackprop, GuidedGradCAM
from vitrail.method.hsic import HSIC
from vitrail.method.inflow import InFlow
from vitrail.method.layered import Layered, Mixing
from vitrail.method.legrad import LeGrad
from vitrail.method.less_is_more import LessIsMore
from vitrail.method.lime import LIME
from vitrail.method.mda import MDA
from vitrail.method.norms import AttIN, GlobEnc, NRes
from vitrail.method.occlusion import PAMI, Occlusion
from vitrail.method.plus import CAT, AttCAT, GradSAM, Plus, SkipPlus
from vitrail.method.random import Random
from vitrail.method.relevance import LRP, PartialLRP, TAttr
from vitrail.method.rise import RISE
from vitrail.method.shapley import KernelSHAP, Shapley
from vitrail.method.spec import parse
from vitrail.method.tis import TIS
from vitrail.method.transition import TransitionAttention
from vitrail.method.var import VAR
from vitrail.method.vit_cx import ViTCX

if TYPE_CHECKING:
    from vitrail.method.aha.explainer import Explainer

__all__ = [
    "AHA",
    "ALTI",
    "CAT",
    "HSIC",
    "LIME",
    "LRP",
    "MDA",
    "METHODS",
    "PAMI",
    "POWERS",
    "RISE",
    "TIS",
    "VAR",
    "AblationCAM",
    "AtMan",
    "AttCAM",
    "AttCAT",
    "AttIN",
    "AttIxG",
    "Batch",
    "BiAttnHeads",
    "BiAttnTokens",
    "DecompX",
    "EigenCAM",
    "Explainer",
    "FullGrad",
    "FullGradPlus",
    "GenAtt",
    "GlobEnc",
    "GradCAM",
    "GradCAMPlusPlus",
    "GradRollout",
    "GradSAM",
    "Grid",
    "GuidedBackprop",
    "GuidedGradCAM",
    "HiResCAM",
    "InFlow",
    "InputXGradient",
    "IntegratedGradients",
    "KernelSHAP",
    "LayerCAM",
    "Layered",
    "LeGrad",
    "LessIsMore",
    "Losses",
    "Method",
    "Mixing",
    "NRes",
    "Objective",
    "Occlusion",
    "PartialLRP",
    "Plus",
    "Random",
    "RawAttention",
    "Rollout",
    "Saliency",
    "ScoreCAM",
    "Shapley",
    "SkipPlus",
    "SmoothGrad",
    "TAttr",
    "TransitionAttention",
    "ViTCX",
    "XGradCAM",
    "XGradCAMPlus",
    "at_once",
    "brought",
    "checksum",
    "describe",
    "marks",
    "methods",
    "misfits",
    "parse",
    "rank_entropy",
    "register",
]


def __getattr__(name: str) -> Any:
    if name != "Explainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vitrail.method.aha.explainer import Explainer  # it brings the Hugging Face Hub's client, which few need

    return Explainer
