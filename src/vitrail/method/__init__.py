"""Ways to explain: a folder for each family, a file for each idea.

`base` says what a method is, `layered` what those with values at every layer share, and `cells` those that hide parts.
"""

from typing import TYPE_CHECKING, Any

from vitrail.method.aha import AHA
from vitrail.method.attention.biattn import BiAttnHeads, BiAttnTokens
from vitrail.method.attention.inflow import InFlow
from vitrail.method.attention.legrad import LeGrad
from vitrail.method.attention.rollout import AttIxG, GenAtt, GradRollout, RawAttention, Rollout
from vitrail.method.attention.transition import TransitionAttention
from vitrail.method.base import METHODS, Method, describe, methods, parse, register
from vitrail.method.baseline.random import Random
from vitrail.method.batch import Batch, checksum
from vitrail.method.cam.gradients import AttCAM, GradCAM, GradCAMPlusPlus, HiResCAM, LayerCAM, XGradCAM, XGradCAMPlus
from vitrail.method.cam.guided import GuidedGradCAM
from vitrail.method.cam.scores import AblationCAM, EigenCAM, ScoreCAM
from vitrail.method.composition.plus import CAT, AttCAT, GradSAM, Plus, SkipPlus
from vitrail.method.composition.var import VAR
from vitrail.method.decomposition.alti import ALTI
from vitrail.method.decomposition.decompx import DecompX
from vitrail.method.decomposition.norms import AttIN, GlobEnc, NRes
from vitrail.method.enlargement import Enlargement, enlarge
from vitrail.method.explaining import (
    Explained,
    Searched,
    Searches,
    batches_of,
    explain_batch,
    joined,
    render,
    render_again,
)
from vitrail.method.gradient.fullgrad import FullGrad, FullGradPlus
from vitrail.method.gradient.guided import GuidedBackprop
from vitrail.method.gradient.pixels import InputXGradient, IntegratedGradients, Saliency, SmoothGrad
from vitrail.method.guided.atman import AtMan
from vitrail.method.guided.less_is_more import LessIsMore
from vitrail.method.guided.tis import TIS
from vitrail.method.guided.vit_cx import ViTCX
from vitrail.method.layered import Layered, Mixing
from vitrail.method.mda.method import MDA
from vitrail.method.perturbation.hsic import HSIC
from vitrail.method.perturbation.lime import LIME
from vitrail.method.perturbation.occlusion import PAMI, Occlusion
from vitrail.method.perturbation.rise import RISE
from vitrail.method.perturbation.shapley import KernelSHAP, Shapley
from vitrail.method.relevance.lrp import LRP, PartialLRP, TAttr
from vitrail.spec import import_families

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
    "Enlargement",
    "Explained",
    "Explainer",
    "FullGrad",
    "FullGradPlus",
    "GenAtt",
    "GlobEnc",
    "GradCAM",
    "GradCAMPlusPlus",
    "GradRollout",
    "GradSAM",
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
    "Method",
    "Mixing",
    "NRes",
    "Occlusion",
    "PartialLRP",
    "Plus",
    "Random",
    "RawAttention",
    "Rollout",
    "Saliency",
    "ScoreCAM",
    "Searched",
    "Searches",
    "Shapley",
    "SkipPlus",
    "SmoothGrad",
    "TAttr",
    "TransitionAttention",
    "ViTCX",
    "XGradCAM",
    "XGradCAMPlus",
    "batches_of",
    "checksum",
    "describe",
    "enlarge",
    "explain_batch",
    "joined",
    "methods",
    "parse",
    "register",
    "render",
    "render_again",
]


import_families(__name__, __path__)  # those that are not named above, too


def __getattr__(name: str) -> Any:
    if name == "Explainer":
        from vitrail.method.aha.explainer import Explainer  # it brings the Hugging Face Hub's client, which few need

        return Explainer
    for cls in METHODS.values():
        if cls.__name__ == name:
            return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
