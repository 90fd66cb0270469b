"""A bundle: one explanation with its pictures in one file, drawn and judged again without the model.

The file is the word VITRAIL and a line feed, the length of a JSON header as a little-endian 64-bit number, the header,
and the arrays one after the other, little-endian, each at a multiple of 64 bytes. docs/bundle.md explains the header.
"""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.errors import InputError
from vitrail.explanation.value import Explanation
from vitrail.files import write_whole
from vitrail.show import scale

MAGIC, VERSION, ALIGNED = b"VITRAIL\n", 1, 64
MOST_HEADER = 2**26
"""Bytes of a header at most; a longer one is no header of ours."""

KINDS = {"float32", "float64", "int64", "int32", "int8", "uint8", "bool"}
"""The types that arrays may have."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """An explanation and the pictures that it explains.

    Attributes:
        explanation: The explanation.
        pictures: (B, H, W, 3) uint8, as the model saw them.
    """

    explanation: Explanation
    pictures: np.ndarray

    @classmethod
    def of(cls, explanation: Explanation, images: Sequence[Any]) -> "Bundle":
        """Put pictures beside an explanation.

        Args:
            explanation: The explanation.
            images: The pictures as the model saw them, one for each of its images.
        """
        from vitrail.model import pictures

        height, width = explanation.size
        read = [pictures.read(image) for image in images]
        if len(read) != len(explanation):
            raise InputError(f"a bundle needs one picture an image, {len(explanation)}, but {len(read)} were given")
        wrong = next((one.size for one in read if one.size != (width, height)), None)
        if wrong is not None:
            raise InputError(
                f"the model saw {height} x {width} pixels, but a picture of {wrong[1]} x {wrong[0]} was given; give "
                "the pictures as the model saw them, which preprocess.picture gives"
            )
        return cls(explanation, np.stack([np.asarray(one) for one in read]))

    @property
    def images(self) -> list[Image.Image]:
        """The pictures as the model saw them."""
        return [Image.fromarray(one) for one in self.pictures]

    def header(self) -> dict[str, Any]:
        """What the file says before its arrays, but for where they lie."""
        found = self.explanation
        maps = found.maps.flatten(0, -3).numpy()
        scales = [scale(one, signed=found.signed) for one in maps]
        return {
            "format": "vitrail bundle",
            "version": VERSION,
            "explanation": found.manifest(),
            "predictions": [[list(one) for one in found.predictions(i, 5)] for i in range(len(found))],
            "colours": [
                {"signed": one.signed, "low": one.low, "high": one.high, "cut": one.cut, "empty": one.empty}
                for one in scales
            ],
        }

    def to_bytes(self) -> bytes:
        """The file."""
        arrays = {"pictures": self.pictures} | self.explanation.arrays()
        body, places = io.BytesIO(), {}
        for name, values in arrays.items():
            body.write(b"\0" * (-body.tell() % ALIGNED))
            kept = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
            places[name] = {"dtype": str(values.dtype), "shape": list(values.shape), "offset": body.tell()}
            body.write(kept.tobytes())
        header = json.dumps(self.header() | {"arrays": places}, ensure_ascii=False).encode()
        before = len(MAGIC) + 8
        header += b" " * (-(before + len(header)) % ALIGNED)
        return MAGIC + len(header).to_bytes(8, "little") + header + body.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write the file; it appears whole or not at all."""
        path = Path(path)
        data = self.to_bytes()
        write_whole(path, lambda file: file.write(data))
        return path

    @classmethod
    def read(cls, source: str | Path | bytes) -> "Bundle":
        """Read a bundle from a file, or from its bytes. Nothing in it is executed."""
        try:
            data = source if isinstance(source, bytes) else Path(source).read_bytes()
            return cls._read(data)
        except Exception as error:  # a damaged header may raise nearly anything
            what = "what was given" if isinstance(source, bytes) else source
            raise InputError(f"{what} is no bundle that can be read ({error}); write it again") from error

    @classmethod
    def _read(cls, data: bytes) -> "Bundle":
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin as one")
        start = len(MAGIC) + 8
        length = int.from_bytes(data[len(MAGIC) : start], "little")
        if not 0 < length <= min(MOST_HEADER, len(data) - start):
            raise ValueError("its header is cut off")
        header = json.loads(data[start : start + length])
        if header["format"] != "vitrail bundle" or header["version"] != VERSION:
            raise ValueError(f"it is of version {header.get('version')!r}, and this vitrail reads {VERSION}")
        arrays = {name: _array(data, start + length, place) for name, place in header["arrays"].items()}
        pictures = arrays.pop("pictures")
        found = Explanation.of(header["explanation"], {name: torch.from_numpy(own) for name, own in arrays.items()})
        if pictures.dtype != np.uint8 or pictures.shape != (len(found), *found.size, 3):
            raise ValueError("its pictures are not those of the explanation")
        return cls(found, pictures)


def _array(data: bytes, start: int, place: dict[str, Any]) -> np.ndarray:
    """The array that lies at a place of the file."""
    kind, shape, offset = place["dtype"], [int(side) for side in place["shape"]], int(place["offset"])
    if kind not in KINDS or min(shape, default=0) < 0 or offset < 0:
        raise ValueError(f"an array of {kind!r}, {shape} at {offset} cannot be")
    dtype, count = np.dtype(kind).newbyteorder("<"), math.prod(shape)
    if start + offset + count * dtype.itemsize > len(data):
        raise ValueError("its arrays are cut off")
    return np.frombuffer(data, dtype, count, start + offset).reshape(shape).astype(kind)
