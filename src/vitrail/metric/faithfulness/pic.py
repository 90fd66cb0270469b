"""Performance information curves: what the model answers against how much the picture tells (XRAI).

A picture is made of the pixels that a map finds important, and of a few random ones; the rest is interpolated. Its
information is its size as a lossless WebP file. SIC follows the softmax probability of a class, AIC whether it is the
predicted one. Both come from the same pictures and passes.

How such pictures are made is in `vitrail.metric.faithfulness.bokeh`.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from vitrail.errors import InputError
from vitrail.metric.faithfulness import bokeh
from vitrail.metric.faithfulness.bokeh import Bools, Bytes, Floats, Ints
from vitrail.model import View, full, in_parts
from vitrail.perturb import counted

Ask: TypeAlias = Callable[[Bytes, Ints], Mapping[str, npt.ArrayLike]]
"""(M, H, W, 3) pictures, and (M,) the image each was made of -> (M,) answers, by the name of what is asked."""

THRESHOLDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10, 0.13, 0.21, 0.34, 0.5, 0.75)
"""The shares of pixels that are shown, those of the authors' notebook."""

POINTS = 1001
"""Of a curve: evenly spaced, from no information to all of it."""

TOGETHER = 64
"""Pictures in one pass."""


class Skip(StrEnum):
    """Why an image has no curve."""

    UNSURE = "the whole picture is answered too low"
    SIZE = "the blurred picture takes as many bytes as the whole one"
    ANSWER = "the blurred picture is answered as high as the whole one"


class Aggregate(NamedTuple):
    """The curve of many images, (POINTS,), its area, and how many images were counted; NaN where none was."""

    values: Floats
    area: float
    counted: int


@dataclass(frozen=True, eq=False)
class InformationCurves:
    """The curves of B images at K thresholds. Those of images without one are NaN.

    Attributes:
        sizes: (B, K + 2) bytes: of the blurred picture, at every threshold, of the whole picture.
        answers: (B, K + 2) the model's answers to the same.
        values: (B, POINTS) the share of the answer that is there, from no information to all of it.
        skipped: Why an image has no curve; None where it has one.
    """

    sizes: Floats
    answers: Floats
    values: Floats
    skipped: tuple[Skip | None, ...]

    def areas(self) -> Floats:
        """(B,) the area under each curve. Higher is better."""
        return area(self.values)


def information_curves(
    pictures: Bytes,
    maps: Floats,
    masks: Bools,
    ask: Ask,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    least: float = 0.8,
    monotone: bool = True,
) -> dict[str, InformationCurves]:
    """The curves of everything that is asked. Images that all of it skips are skipped before their pictures are made.

    Takes about 2 MB of memory an image, so give some hundreds at a time.

    Args:
        pictures: (B, H, W, 3) what the model saw.
        maps: (B, H, W), enlarged to the pictures' size.
        masks: (B, H, W) the pixels shown from the start, of `random_mask`; the same for all methods that are compared.
        ask: What the model answers: `asker`.
        thresholds: The shares of pixels shown, ascending.
        least: Images whose whole picture is answered lower are skipped; 0.8 in the authors' code, 0.5 in their
            notebook.
        monotone: Whether an answer counts as the highest one so far.
    """
    _check(pictures, maps, masks, thresholds)
    sizes, answers, skipped = _ends(pictures, masks, ask, len(thresholds), least)
    live = np.array([i for i in range(len(pictures)) if any(skips[i] is None for skips in skipped.values())], np.int64)
    if len(live):
        shown = bokeh.bokehs(pictures[live], np.stack([kept(maps[i], masks[i], thresholds) for i in live]))
        sizes[live, 1:-1] = shown.sizes
        for name, between in _asked(ask, shown.pictures, live).items():
            answers[name][live, 1:-1] = between
    return {name: _curves(sizes, answers[name], skipped[name], monotone) for name in answers}


def brief_curves(
    pictures: Bytes,
    maps: Floats,
    masks: Bools,
    ask: Ask,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    least: float = 0.8,
    name: str = "aic",
) -> InformationCurves:
    """The monotone curves of an answer that is 0 or 1, for about a third of the time of `information_curves`.

    Such a curve is 0 up to the last picture before the first that is answered with 1, and 1 from that one on. So no
    picture behind it is made, and only these two are compressed. Where the first takes no more bytes than what it is
    compared with, which would bend the curve, all are. The same curves come out, but for some ten-thousandths where a
    picture that was not compressed lies between the two.

    Args:
        pictures: As in `information_curves`, and so are the others.
        maps: (B, H, W).
        masks: (B, H, W).
        ask: What the model answers.
        thresholds: The shares of pixels shown, ascending.
        least: Images whose whole picture is answered lower are skipped.
        name: Which of the answers.

    Returns:
        The curves; sizes and answers that were not needed are NaN.
    """
    _check(pictures, maps, masks, thresholds)
    sizes, every, skips = _ends(pictures, masks, ask, len(thresholds), least)
    answers, skipped = every[name], skips[name]
    live = [i for i, skip in enumerate(skipped) if skip is None]
    keep = {i: kept(maps[i], masks[i], thresholds) for i in live}
    seen = {i: (0, masks[i], pictures[i]) for i in live}  # the last one before the answer is 1: its column, and itself
    decided: list[tuple[int, int, Bytes]] = []
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for column in range(1, len(thresholds) + 1):
            new = [i for i in live if not np.array_equal(keep[i][column - 1], seen[i][1])]
            if not new:
                continue
            made = list(pool.map(bokeh.blurred, [pictures[i] for i in new], [keep[i][column - 1] for i in new]))
            found = np.asarray(ask(np.stack(made), np.array(new, np.int64))[name], np.float64)
            answers[new, column] = found
            for i, picture, answer in zip(new, made, found):
                if answer > 0:
                    decided += [(i, *seen[i][::2]), (i, column, picture)]
                    live.remove(i)
                else:
                    seen[i] = column, keep[i][column - 1], picture
        decided += [(i, *seen[i][::2]) for i in live]  # for these the whole picture is the first
        decided = [one for one in decided if one[1] > 0]  # the ends are known
        for (i, column, _), taken in zip(decided, pool.map(bokeh.entropy, [picture for *_, picture in decided])):
            sizes[i, column] = taken
    bent = [i for i in keep if not _rises(sizes[i])]
    if bent:
        shown = bokeh.bokehs(pictures[bent], np.stack([keep[i] for i in bent]))
        sizes[bent, 1:-1] = shown.sizes
        answers[bent, 1:-1] = _asked(ask, shown.pictures, np.array(bent))[name]
    return _curves(sizes, answers, skipped, monotone=True)


def asker(view: View, classes: torch.Tensor) -> Ask:
    """Asks a model about pictures at its input size: ``sic`` and ``aic``.

    Args:
        view: The model.
        classes: (B,) the class of each image; the predicted ones in the authors' protocol.
    """
    mean, std = (torch.tensor(x, device=view.device).view(3, 1, 1) for x in (view.preprocess.mean, view.preprocess.std))

    def ask(pictures: Bytes, which: Ints) -> dict[str, npt.ArrayLike]:
        wanted = classes[torch.from_numpy(which)].to(view.device)

        def logits(part: slice) -> torch.Tensor:
            pixels = torch.from_numpy(pictures[part]).to(view.device).permute(0, 3, 1, 2).float() / 255
            return full(view.logits(((pixels - mean) / std).to(view.dtype)))

        with view.still(), torch.no_grad():
            found = torch.cat([part for _, part in in_parts(len(pictures), TOGETHER, logits)])
        probability = found.softmax(1).gather(1, wanted[:, None]).squeeze(1)
        return {"sic": probability.double().cpu().numpy(), "aic": (found.argmax(1) == wanted).double().cpu().numpy()}

    return ask


def random_mask(shape: tuple[int, int], seed: int | Sequence[int] = 0, share: float = 0.01) -> Bools:
    """(H, W): the random pixels that are shown from the start.

    Args:
        shape: Height and width.
        seed: Of one image, such as ``(seed, image number)``.
        share: The share of pixels.

    Example:
        >>> int(random_mask((224, 224), seed=(0, 7)).sum())
        501
    """
    mask = np.zeros(shape, dtype=bool)
    mask.flat[np.random.default_rng(seed).choice(mask.size, counted(share, mask.size), replace=False)] = True
    return mask


def kept(heat: Floats, mask: Bools, thresholds: Sequence[float] = THRESHOLDS) -> Bools:
    """(H, W) a map, and the pixels shown from the start -> (K, H, W) the pixels shown at every threshold.

    Pixels as high as the last one that counts are shown too.
    """
    return np.stack([(heat >= np.quantile(heat, 1 - share)) | mask for share in thresholds])


def curve(sizes: npt.ArrayLike, answers: npt.ArrayLike, *, monotone: bool = True) -> Floats:
    """(K + 2,) bytes and answers, the blurred picture first and the whole one last -> (POINTS,) the curve.

    Both are shares of the way between their ends. The highest answer so far counts in the order of the thresholds, so
    a picture that takes less than the one before it can still turn the curve back.

    Example:
        >>> float(area(curve([10, 15, 20], [0.1, 0.9, 0.9])))
        0.75
    """
    information, response = (
        np.clip((x - x[0]) / (x[-1] - x[0]), 0, 1) for x in (np.asarray(y, np.float64) for y in (sizes, answers))
    )
    if monotone:
        response = np.maximum.accumulate(response)
    # The ends come last and the sort is stable, so at equal information they win: (0, 0) hides an answer that is free.
    information, response = (np.concatenate([x[1:-1], [0.0, 1.0]]) for x in (information, response))
    order = np.argsort(information, kind="stable")
    values: Floats = np.interp(np.linspace(0, 1, POINTS), information[order], response[order])
    return values


def aggregate(values: Floats, how: Literal["median", "mean"] = "median") -> Aggregate:
    """(B, POINTS) curves -> one for all of them, point by point, and its area. Curves that are all NaN do not count.

    Args:
        values: The curves of `InformationCurves`, of any number of them one after the other.
        how: ``median``, the authors' default, or ``mean``; the median of AIC's curves is nearly a single step.
    """
    counted = values[~np.isnan(values).all(1)]
    if not len(counted):
        return Aggregate(np.full(POINTS, np.nan), np.nan, 0)
    found = np.median(counted, axis=0) if how == "median" else counted.mean(0)
    return Aggregate(found, float(area(found)), len(counted))


def area(values: Floats) -> Floats:
    """(..., POINTS) -> (...): the area under curves, by trapezoids."""
    found: Floats = (values[..., 1:] + values[..., :-1]).mean(-1) / 2
    return found


def _ends(
    pictures: Bytes, masks: Bools, ask: Ask, many: int, least: float
) -> tuple[Floats, dict[str, Floats], dict[str, tuple[Skip | None, ...]]]:
    """(B, many + 2) sizes and answers with both ends filled in, the rest NaN; and who has no curve."""
    sizes = np.full((len(pictures), many + 2), np.nan)
    ends = bokeh.bokehs(pictures, np.stack([masks, np.ones_like(masks)], 1))
    sizes[:, [0, -1]] = ends.sizes
    answers: dict[str, Floats] = {}
    skipped: dict[str, tuple[Skip | None, ...]] = {}
    for name, both in _asked(ask, ends.pictures, np.arange(len(pictures))).items():
        answers[name] = np.full_like(sizes, np.nan)
        answers[name][:, [0, -1]] = both
        skipped[name] = tuple(_skip(*of_one, least) for of_one in zip(ends.sizes, both))
    return sizes, answers, skipped


def _asked(ask: Ask, pictures: Bytes, images: Ints) -> dict[str, Floats]:
    """(B, K, H, W, 3) pictures of images -> (B, K) answers, by name."""
    many = pictures.shape[:2]
    found = ask(pictures.reshape(-1, *pictures.shape[2:]), np.repeat(images, many[1]))
    return {name: np.asarray(answers, np.float64).reshape(many) for name, answers in found.items()}


def _skip(sizes: Ints, answers: Floats, least: float) -> Skip | None:
    """(2,) of the blurred and the whole picture. So written that an answer which is no number skips the image too."""
    if not answers[1] >= least:
        return Skip.UNSURE
    if sizes[0] >= sizes[1]:
        return Skip.SIZE
    return None if answers[0] < answers[1] else Skip.ANSWER


def _rises(sizes: Floats) -> bool:
    """Whether every size that is known is above the one before it; the whole picture may be smaller than its parts."""
    known = sizes[:-1][~np.isnan(sizes[:-1])]
    return bool((np.diff(known) > 0).all())


def _curves(sizes: Floats, answers: Floats, skipped: tuple[Skip | None, ...], monotone: bool) -> InformationCurves:
    values = np.full((len(sizes), POINTS), np.nan)
    for i, skip in enumerate(skipped):
        if skip is None:
            known = ~np.isnan(sizes[i])
            values[i] = curve(sizes[i, known], answers[i, known], monotone=monotone)
    return InformationCurves(sizes, answers, values, skipped)


def _check(pictures: Bytes, maps: Floats, masks: Bools, thresholds: Sequence[float]) -> None:
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or 0 in pictures.shape or min(pictures.shape[1:3]) < 2:
        raise InputError(
            "pictures must be uint8, (images, height, width, 3), of 2 x 2 pixels or more, but "
            f"{pictures.dtype} {pictures.shape} was given; Preprocess.picture gives what a model saw"
        )
    if maps.shape != pictures.shape[:3] or masks.shape != maps.shape or masks.dtype != np.bool_:
        raise InputError(
            f"there must be a map and a mask of bools for each of the pictures, {pictures.shape[:3]}, but "
            f"{maps.shape} and {masks.dtype} {masks.shape} were given; enlarge maps with Explanation.upsample"
        )
    if not np.isfinite(maps).all():
        raise InputError("maps must be finite, but NaN or infinite values were given")
    if list(thresholds) != sorted(thresholds) or not all(0 < share <= 1 for share in thresholds):
        raise InputError(f"thresholds must be shares above 0, up to 1, ascending, but {thresholds} were given")
