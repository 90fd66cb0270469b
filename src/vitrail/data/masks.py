"""Where the objects are: masks and boxes as users have them, brought to the model's input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.errors import InputError
from vitrail.model import Preprocess


class BoxError(InputError):
    """A box that holds nothing of its picture.

    Attributes:
        image: The picture's number.
        said: What is wrong, without it.
    """

    def __init__(self, image: int, said: str) -> None:
        super().__init__(f"image {image}: {said}")
        self.image, self.said = image, said


def is_input(source: Any) -> bool:
    """Whether something is a model input already, and no picture."""
    return isinstance(source, Tensor) and source.is_floating_point()


def check_truth(masks: Any, boxes: Any, images: int) -> None:
    """Refuse masks and boxes that cannot belong to so many images."""
    if masks is not None and boxes is not None:
        raise InputError("masks and boxes were given; give one of them")
    for what, given in (("mask", masks), ("list of boxes", boxes)):
        if given is not None and len(given) != images:
            raise InputError(f"there must be one {what} an image, but {len(given)} were given for {images} images")


def check_boxes(boxes: Any, opened: Sequence[Any], rows: slice) -> None:
    """Refuse boxes of some of the images that hold nothing of them; `masks_of` leaves such boxes out.

    Args:
        boxes: Lists of boxes for all images, or None.
        opened: These images, as PIL pictures or model inputs.
        rows: Where they are among all.
    """
    for i, image in zip(range(rows.start, rows.stop), opened if boxes is not None else ()):
        height, width = image.shape[-2:] if is_input(image) else image.size[::-1]
        for x0, y0, x1, y1 in _table(boxes[i], i):
            said = f"the box {x0:g} {y0:g} {x1:g} {y1:g}"
            if x0 >= x1 or y0 >= y1:
                raise BoxError(i, f"{said} holds no pixel; give x0 y0 x1 y1, the upper left corner and the lower right")
            if x1 <= 0 or y1 <= 0 or x0 >= width or y0 >= height:
                raise BoxError(i, f"{said} lies outside of its picture, which is {width} wide and {height} high")


def masks_of(preprocess: Preprocess, opened: Sequence[Any], rows: slice, masks: Any, boxes: Any) -> Tensor | None:
    """(B, H, W) int8 for some of the images: 1 on the object, 0 beside it, -1 where it does not count.

    Args:
        preprocess: What brings pictures to the model's size.
        opened: These images, as PIL pictures or model inputs.
        rows: Where they are among all.
        masks: One mask for each of all images, or None.
        boxes: Lists of boxes instead, or None.
    """
    if masks is None and boxes is None:
        return None
    found = []
    for i, image in zip(range(rows.start, rows.stop), opened):
        size = tuple(image.shape[-2:]) if is_input(image) else image.size[::-1]
        mask = _mask(masks[i], i) if masks is not None else _boxed(boxes[i], size, i)
        if tuple(mask.shape) != size:
            what = f"the mask of image {i}" if masks is None else _named(masks[i], i)
            raise InputError(
                f"{what} is {mask.shape[0]} x {mask.shape[1]} pixels, but the image {size[0]} x {size[1]}; "
                "give masks of the size of the pictures as they were given"
            )
        found.append(mask if is_input(image) else preprocess.mask(mask))
    return torch.stack(found)


def _mask(given: Any, i: int) -> Tensor:
    """(H, W) int8 from an array, a tensor, a picture of one channel or its path."""
    what = _named(given, i)
    if isinstance(given, str | Path):
        try:
            with Image.open(given) as file:
                given = np.array(file)
        except (OSError, ValueError) as error:
            raise InputError(f"the mask {given} cannot be read ({error})") from error
    values = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given))
    if values.ndim != 2:
        colours = "; save it as a picture of one channel (grey)" if values.ndim == 3 else ""
        raise InputError(f"a mask must be (height, width), but {what} is {tuple(values.shape)}{colours}")
    known = set(values.unique().tolist())
    if known <= {0, 255} and values.dtype == torch.uint8:  # a black and white picture
        return (values > 0).to(torch.int8)
    if not known <= {-1, 0, 1, 255}:
        raise InputError(
            "a mask must hold 1 (the object), 0 (the rest) and -1 or 255 (does not count), but "
            f"{what} holds {', '.join(map(str, sorted(known)[:6]))}"
        )
    return torch.where((values < 0) | (values == 255), -1, values).to(torch.int8)


def _named(given: Any, i: int) -> str:
    """What messages call the mask of an image."""
    return f"the mask {given}" if isinstance(given, str | Path) else f"the mask of image {i}"


def _table(boxes: Any, i: int) -> np.ndarray:
    """(boxes, 4)."""
    table = np.asarray(boxes, dtype=float).reshape(-1, 4) if np.size(boxes) % 4 == 0 else None
    if table is None or not np.isfinite(table).all():
        raise InputError(f"boxes must be (x0, y0, x1, y1) in pixels, but image {i} has {boxes!r}")
    return table


def _boxed(boxes: Any, size: tuple[int, ...], i: int) -> Tensor:
    """(H, W) int8: 1 in any of the boxes."""
    mask = torch.zeros(size, dtype=torch.int8)
    table = _table(boxes, i)
    for x0, y0, x1, y1 in table.clip(min=0).astype(int):
        mask[y0:y1, x0:x1] = 1
    return mask
