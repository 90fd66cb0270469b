"""Heat maps as colours: alone, or laid over the picture they explain."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from vitrail.errors import InputError

Mode = Literal["bilinear", "nearest"]
Floats = npt.NDArray[np.float64]

# The two ends of ColorBrewer's RdBu: told apart with every common colour blindness, and of nearly equal lightness,
# so that neither side looks stronger than it is.
FOR = np.array([178.0, 24.0, 43.0])
AGAINST = np.array([33.0, 102.0, 172.0])

# A map counts as signed when more than this share of its absolute mass is negative: rounding noise below zero is not
# evidence against a class.
NEGATIVE_SHARE = 0.02

# The strongest colour stands for at most HEADROOM times what all but this share of the values stay below, so that one
# hot pixel does not black out the rest of the map; the headroom spares the peaks of ordinary maps from clipping.
BEYOND = 0.005
HEADROOM = 1.5

# Maps with a value for every pixel (gradients) have long tails: all but this share of the values get the full range.
FINE = 64 * 64
BEYOND_FINE = 0.02

# Differences this far below the peak are float32 rounding noise: never stretch them over the colours.
NOISE = 1e-6


@dataclass(frozen=True)
class Scale:
    """How the values of one map become colours.

    Attributes:
        signed: whether there is evidence for and against, with no evidence at zero.
        low: the value drawn as no evidence (signed maps: zero).
        high: the value drawn in the strongest colour, as is everything beyond it.
    """

    signed: bool
    low: float
    high: float

    def __call__(self, heat: npt.NDArray[Any]) -> Floats:
        """Map values to [-1, 1] (signed) or [0, 1]; a constant map has nothing to tell apart and becomes zero."""
        if self.high <= self.low:
            return np.zeros(heat.shape)
        values = (heat.astype(np.float64) - self.low) / (self.high - self.low)
        return np.clip(values, -1.0 if self.signed else 0.0, 1.0)


def scale(heat: npt.NDArray[Any], limit: float | None = None, *, signed: bool | None = None) -> Scale:
    """Choose how a map's values become colours.

    Signed maps get limits symmetric around zero. Other maps run from their lowest value, because many methods
    (averages over masks) give maps that lie far above zero everywhere and whose differences are the message.

    Args:
        heat: (h, w) finite values.
        limit: the value that gets the strongest colour; an unsigned map then starts at zero. By default the largest
            absolute value, but at most 1.5 times the 99.5th percentile (the 98th, for maps with a value a pixel).
        signed: whether negative values speak against the class; by default, if they carry 2 % of the absolute mass.

    Raises:
        InputError: the heat is not a finite (h, w) array, or the limit is not a positive number.

    Example:
        >>> scale(2 * np.eye(2))
        Scale(signed=False, low=0.0, high=2.0)
    """
    values = checked(heat)
    magnitude = np.abs(values)
    peak = float(magnitude.max())
    if signed is None:
        # Shares of the peak rather than plain sums, which could overflow.
        shares = values / peak if peak > 0 else values
        signed = bool(-shares[shares < 0].sum() > NEGATIVE_SHARE * np.abs(shares).sum())
    if limit is not None:
        if not (np.isfinite(limit) and limit > 0):
            raise InputError(f"The limit of a heat map's colours must be a positive number; given {limit}.")
        return Scale(signed, 0.0, float(limit))
    if signed:
        return Scale(signed, 0.0, _robust_top(magnitude))
    low = -_robust_top(-values)
    spread = _robust_top(values - low)
    # A constant map is often constant up to rounding: its noise must not be stretched over all the colours.
    return Scale(signed, low, low + spread if spread > NOISE * peak else low)


def checked(heat: npt.NDArray[Any]) -> Floats:
    """Return the heat as float64, or say in one sentence why it cannot be drawn."""
    values = np.asarray(heat)
    if values.ndim != 2 or values.size == 0:
        raise InputError(f"A heat map must have shape (height, width) and hold values; given shape {values.shape}.")
    values = values.astype(np.float64)
    broken = int((~(np.abs(values) <= np.finfo(np.float32).max)).sum())  # so written that NaN counts too
    if broken:
        raise InputError(
            f"A heat map must hold finite float32 values; {broken} of its {values.size} are NaN or infinite: "
            "look at the model's outputs for this picture, which are the usual cause."
        )
    return values


def _robust_top(values: Floats) -> float:
    lowest, highest = float(values.min()), float(values.max())
    # method="lower" picks a value of the map itself: interpolating towards an outlier would let it in again.
    beyond, headroom = (BEYOND, HEADROOM) if values.size < FINE else (BEYOND_FINE, 1.0)
    common = float(np.quantile(values, 1 - beyond, method="lower")) - lowest
    if common <= NOISE * (highest - lowest):
        return highest
    return min(highest, lowest + headroom * common)


def upsample(heat: npt.NDArray[Any], size: tuple[int, int], mode: Mode = "bilinear") -> npt.NDArray[np.float32]:
    """Resize a map (pixel centres aligned at the half pixel, as images are resized).

    Args:
        heat: (h, w) finite values.
        size: (height, width) wanted; may be smaller, then areas are averaged.
        mode: "bilinear" for smooth maps, "nearest" to show the patches as they are.

    Example:
        >>> upsample(np.eye(2), (4, 6)).shape
        (4, 6)
    """
    if mode not in ("bilinear", "nearest"):
        raise InputError(f'A heat map is resized with mode "bilinear" or "nearest"; given {mode!r}.')
    values = torch.from_numpy(checked(heat).astype(np.float32))[None, None]
    if mode == "nearest":
        resized = torch.nn.functional.interpolate(values, size=size, mode="nearest-exact")
    else:
        shrinks = size[0] < values.shape[2] or size[1] < values.shape[3]
        resized = torch.nn.functional.interpolate(
            values, size=size, mode="bilinear", align_corners=False, antialias=shrinks
        )
    result: npt.NDArray[np.float32] = resized[0, 0].numpy()
    return result


def colourise(
    heat: npt.NDArray[Any], *, signed: bool | None = None, limit: float | None = None
) -> npt.NDArray[np.uint8]:
    """Draw a map alone: blue, white, red for signed maps, dark to bright for the others.

    Args:
        heat: (h, w) finite values.
        signed: see :func:`scale`.
        limit: see :func:`scale`.

    Returns:
        (h, w, 3) colours, 8 bit.

    Example:
        >>> colourise(np.array([[-1.0, 0.0, 1.0]]), limit=1)[0, 1]
        array([255, 255, 255], dtype=uint8)
    """
    values = checked(heat)
    chosen = scale(values, limit, signed=signed)
    unit = chosen(values)
    if chosen.signed:
        return _blend(np.full((*unit.shape, 3), 255.0), _signed_ends(unit), np.abs(unit))
    return np.rint(_sequential(unit)).astype(np.uint8)


def overlay(
    picture: Image.Image,
    heat: npt.NDArray[Any],
    *,
    alpha: float = 0.55,
    signed: bool | None = None,
    limit: float | None = None,
    mode: Mode = "bilinear",
    contour: float | None = None,
) -> Image.Image:
    """Lay a map over its picture, at the picture's size.

    The colour's opacity grows with the evidence, and the picture below it is desaturated, so that its own colours are
    not taken for evidence: under a signed map only where there is evidence (where the map is zero the picture shows
    unchanged), under other maps everywhere.

    Args:
        picture: any PIL picture; drawn as RGB.
        heat: (h, w) finite values, at any resolution.
        alpha: opacity of the strongest colour, 0 to 1.
        signed: see :func:`scale`.
        limit: see :func:`scale`.
        mode: see :func:`upsample`.
        contour: also outline the places at or above this fraction (0 to 1) of the strongest evidence.

    Raises:
        InputError: the heat cannot be drawn (see :func:`scale`), or alpha or contour lies outside 0 to 1.

    Example:
        >>> overlay(Image.new("RGB", (8, 6)), np.eye(2)).size
        (8, 6)
    """
    for name, fraction in (("alpha", alpha), ("contour", contour)):
        if fraction is not None and not 0 <= fraction <= 1:
            raise InputError(f"The {name} of an overlay must lie between 0 and 1; given {fraction}.")
    # The scale comes from the map itself: resizing it first would make the colours depend on the picture's size.
    chosen = scale(heat, limit, signed=signed)
    unit = chosen(upsample(heat, (picture.height, picture.width), mode))
    pixels = np.asarray(picture.convert("RGB")).astype(np.float64)
    grey = np.asarray(picture.convert("RGB").convert("L")).astype(np.float64)[..., None]
    greyed = min(1.0, 1.5 * alpha)
    if chosen.signed:
        strength = np.abs(unit)
        under = pixels + greyed * np.minimum(1.0, 2 * strength)[..., None] * (grey - pixels)
        drawn = _blend(under, _signed_ends(unit), alpha * strength)
    else:
        # The power lifts middling evidence, whose dark colours would else be lost on a dark picture.
        drawn = _blend(pixels + greyed * (grey - pixels), _sequential(unit), alpha * unit**0.6)
    if contour is not None:
        _outline(drawn, np.abs(unit) >= max(contour, NOISE))
    return Image.fromarray(drawn)


def _signed_ends(unit: Floats) -> Floats:
    return np.where(unit[..., None] < 0, AGAINST, FOR)


def _blend(under: Floats, colours: Floats, opacity: Floats) -> npt.NDArray[np.uint8]:
    return np.rint(under + opacity[..., None] * (colours - under)).astype(np.uint8)


@lru_cache(maxsize=1)
def _sequential_table() -> Floats:
    from matplotlib import colormaps

    return np.asarray(colormaps["inferno"](np.linspace(0, 1, 256)))[:, :3] * 255


def _sequential(unit: Floats) -> Floats:
    return _sequential_table()[np.rint(unit * 255).astype(np.intp)]


def _outline(drawn: npt.NDArray[np.uint8], inside: npt.NDArray[np.bool_]) -> None:
    """Draw a white line just inside a region and a dark one just outside: one of them shows on any picture."""
    width = max(1, round(min(inside.shape) / 240))
    drawn[_grown(inside, width) & ~inside] = 40
    drawn[inside & _grown(~inside, width)] = 255


def _grown(region: npt.NDArray[np.bool_], steps: int) -> npt.NDArray[np.bool_]:
    for _ in range(steps):
        grown = region.copy()
        grown[1:] |= region[:-1]
        grown[:-1] |= region[1:]
        grown[:, 1:] |= region[:, :-1]
        grown[:, :-1] |= region[:, 1:]
        region = grown
    return region
