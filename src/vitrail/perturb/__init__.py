"""What is changed about a picture, and what the model answers then."""

from vitrail.perturb.baselines import (
    BASELINES,
    WIDEST,
    AdaptiveBlur,
    Baseline,
    BlackPixel,
    GaussianBlur,
    ImageMean,
    RiseBlur,
    UniformNoise,
    ZeroNorm,
    baseline,
    register,
)
from vitrail.perturb.canvas import Canvas, PixelCanvas, RemovalCanvas, TokenCanvas, cell_canvas, grid_labels
from vitrail.perturb.order import counted, order_of, ranks_of
from vitrail.perturb.responder import Responder, Score
from vitrail.perturb.throughput import roofline

__all__ = [
    "BASELINES",
    "WIDEST",
    "AdaptiveBlur",
    "Baseline",
    "BlackPixel",
    "Canvas",
    "GaussianBlur",
    "ImageMean",
    "PixelCanvas",
    "RemovalCanvas",
    "Responder",
    "RiseBlur",
    "Score",
    "TokenCanvas",
    "UniformNoise",
    "ZeroNorm",
    "baseline",
    "cell_canvas",
    "counted",
    "grid_labels",
    "order_of",
    "ranks_of",
    "register",
    "roofline",
]
