"""Heat maps as colours: alone, or laid over the picture they explain."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

from vitrail.errors import InputError
from vitrail.show.lettering import INK, fit, line_height, write

Mode = Literal["bilinear", "nearest"]
Floats = npt.NDArray[np.float64]
Enlarge: TypeAlias = Callable[[npt.NDArray[Any], tuple[int, int]], npt.NDArray[Any]]
"""A method's own way from (h, w) values to (height, width) ones."""
Style = Literal["auto", "signed", "heat"]
"""Red for and blue against the class (``signed``), dark to bright (``heat``), or as the method's maps are meant."""

# The two ends of ColorBrewer's RdBu: told apart with every common colour blindness, and of nearly equal lightness,
# so that neither side looks stronger than it is.
FOR = np.array([178.0, 24.0, 43.0])
AGAINST = np.array([33.0, 102.0, 172.0])

# Where nobody says whether maps are signed, they are if more than this share of their absolute mass is negative:
# rounding noise below zero is not evidence against a class.
NEGATIVE_SHARE = 0.02

# The strongest colour stands for the largest value, so that a value half as large looks half as strong. Only maps with
# a value for every pixel (gradients) have single pixels far above all around them, which would leave the rest unseen:
# there it stands for the strongest region, PART of the map's side wide, but for no less than 1 / EXAGGERATED of the
# largest value. So no value is drawn more than EXAGGERATED times too strong.
FINE = 64
PART = 16
EXAGGERATED = 4.0

# Differences this far below the peak are float32 rounding noise: never stretch them over the colours.
NOISE = 1e-6

# How much of the way to white the picture under a signed map goes.
LIGHTER = 0.35

NOTHING = "no evidence"
"""What is written over a map that has the same value everywhere."""
BLANK = (228, 228, 228)


@dataclass(frozen=True)
class Scale:
    """How the values of one map become colours.

    Attributes:
        signed: whether there is evidence for and against, with no evidence at zero.
        low: the value drawn as no evidence (signed maps: zero).
        high: the value drawn in the strongest colour, as is everything beyond it.
        cut: whether the map has values beyond it.
    """

    signed: bool
    low: float
    high: float
    cut: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw: the map has the same value everywhere, up to rounding."""
        return self.high <= self.low

    def __call__(self, heat: npt.NDArray[Any]) -> Floats:
        """Map values to [-1, 1] (signed) or [0, 1]; a constant map has nothing to tell apart and becomes zero."""
        if self.empty:
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
            absolute value; of maps with 64 x 64 values and more the strongest region's mean, at least a quarter of it.
        signed: whether negative values speak against the class; by default, if they carry 2 % of the absolute mass.

    Raises:
        InputError: the heat is not a finite (h, w) array, or the limit is not a positive number.

    Example:
        >>> scale(2 * np.eye(2))
        Scale(signed=False, low=0.0, high=2.0, cut=False)
    """
    values = checked(heat)
    if signed is None:
        signed = speaks_against(values)
    if limit is not None:
        if not (np.isfinite(limit) and limit > 0):
            raise InputError(f"The limit of a heat map's colours must be a positive number; given {limit}.")
        return Scale(signed, 0.0, float(limit))
    low, high = float(values.min()), float(values.max())
    # A constant map is often constant up to rounding: its noise must not be stretched over all the colours.
    if high - low <= NOISE * max(-low, high):
        base = 0.0 if signed else low
        return Scale(signed, base, base)
    above = np.abs(values) if signed else values - low
    top, peak = _strongest(above), float(above.max())
    return Scale(signed, 0.0 if signed else low, (0.0 if signed else low) + top, top < peak)


def speaks_against(*heats: npt.NDArray[Any]) -> bool:
    """Whether maps look signed: more than 2 % of the absolute mass of one of them is negative."""
    for heat in heats:
        values = checked(heat)
        peak = float(np.abs(values).max())
        # Shares of the peak rather than plain sums, which could overflow.
        shares = values / peak if peak > 0 else values
        if -shares[shares < 0].sum() > NEGATIVE_SHARE * np.abs(shares).sum():
            return True
    return False


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


def _strongest(above: Floats) -> float:
    """The value, of those above zero, that the strongest colour stands for."""
    peak = float(above.max())
    if min(above.shape) < FINE:
        return peak
    shares = torch.from_numpy(above / peak)[None, None]
    region = torch.nn.functional.avg_pool2d(shares, min(above.shape) // PART, 1)
    return peak * min(1.0, max(float(region.max()), 1 / EXAGGERATED))


def upsample(
    heat: npt.NDArray[Any], size: tuple[int, int], mode: Mode | Enlarge = "bilinear"
) -> npt.NDArray[np.float32]:
    """Resize a map (pixel centres aligned at the half pixel, as images are resized).

    Args:
        heat: (h, w) finite values.
        size: (height, width) wanted; may be smaller, then areas are averaged.
        mode: "bilinear" for smooth maps, "nearest" to show the patches as they are, or a function that enlarges.

    Example:
        >>> upsample(np.eye(2), (4, 6)).shape
        (4, 6)
    """
    if not callable(mode) and mode not in ("bilinear", "nearest"):
        raise InputError(f'A heat map is resized with mode "bilinear" or "nearest"; given {mode!r}.')
    values = torch.from_numpy(checked(heat).astype(np.float32))[None, None]
    shrinks = size[0] < values.shape[2] or size[1] < values.shape[3]
    if callable(mode) and not shrinks:
        return checked(mode(heat, size)).astype(np.float32)
    if mode == "nearest":
        resized = torch.nn.functional.interpolate(values, size=size, mode="nearest-exact")
    else:
        resized = torch.nn.functional.interpolate(
            values, size=size, mode="bilinear", align_corners=False, antialias=shrinks
        )
    result: npt.NDArray[np.float32] = resized[0, 0].numpy()
    return result


def colourise(
    heat: npt.NDArray[Any], *, signed: bool | None = None, limit: float | None = None
) -> npt.NDArray[np.uint8]:
    """Draw a map alone: blue, white, red for signed maps, dark to bright for the others, grey for empty ones.

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
    if chosen.empty:
        return np.full((*values.shape, 3), BLANK, np.uint8)
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
    mode: Mode | Enlarge = "bilinear",
    contour: float | None = None,
) -> Image.Image:
    """Lay a map over its picture, at the picture's size.

    The colour's opacity grows with the evidence, and the picture below it is desaturated, so that its own colours are
    not taken for evidence; under a signed map it is lighter too. A map that has the same value everywhere is not
    coloured: its picture is grey, with a word on it.

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
    pixels = np.asarray(picture.convert("RGB")).astype(np.float64)
    grey = np.asarray(picture.convert("RGB").convert("L")).astype(np.float64)[..., None]
    greyed = min(1.0, 1.5 * alpha)
    if chosen.empty:
        return worded(Image.fromarray(np.rint(pixels + greyed * (grey - pixels)).astype(np.uint8)))
    unit = chosen(upsample(heat, (picture.height, picture.width), mode))
    under = pixels + greyed * (grey - pixels)
    if chosen.signed:
        # Lighter and more opaque: red and blue are dark colours, which the picture would swallow.
        light = under + LIGHTER * greyed * (255 - under)
        drawn = _blend(light, _signed_ends(unit), min(1.0, 1.4 * alpha) * np.abs(unit))
    else:
        # The power lifts middling evidence, whose dark colours would else be lost on a dark picture.
        drawn = _blend(under, _sequential(unit), alpha * unit**0.6)
    if contour is not None:
        _outline(drawn, np.abs(unit) >= max(contour, NOISE))
    return Image.fromarray(drawn)


def worded(picture: Image.Image) -> Image.Image:
    """Write over a picture's middle that its map holds no evidence, where there is room for the words."""
    room = 0.9 * picture.width
    face, lines = fit(NOTHING, room, (15, 13, 11, 9, 8), lines=1)
    wide, high = max(map(face.getlength, lines)) + face.size, len(lines) * line_height(face) + 6
    if " ".join(lines) != NOTHING or wide > picture.width or high > picture.height:
        return picture
    draw, middle, top = ImageDraw.Draw(picture), picture.width / 2, (picture.height - high) / 2
    draw.rounded_rectangle((middle - wide / 2, top, middle + wide / 2, top + high), high / 2, fill=(255, 255, 255))
    write(draw, (middle, top + 3), lines, face, colour=INK, anchor="ma")
    return picture


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
