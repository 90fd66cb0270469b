"""Pictures as users have them (files, their bytes, arrays, PIL) become one thing: 8-bit RGB, upright, first frame."""

import io
import os
import struct
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from vitrail.errors import InputError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")

# Raster formats only: left to itself PIL also tries EPS, which starts Ghostscript on whatever the file holds.
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "DIB", "PPM", "JPEG2000", "AVIF")

# Warning filters belong to the whole process: two readers that change them at once could leave them changed.
_FILTERS = threading.Lock()

_ACCEPTED = "a file path, a file's bytes, a PIL picture, a (H, W, 3) array or a uint8 (3, H, W) tensor"

DEEPEST = 32
"""Lists of pictures that may lie one inside the other."""

LOOKED_AT = 256
"""Files at most that are looked at before any work is done."""

Encoded: TypeAlias = bytes | bytearray | memoryview | io.BytesIO
"""The content of a picture file."""

ENCODED = (bytes, bytearray, memoryview, io.BytesIO)


def read(source: str | os.PathLike[Any] | Encoded | Image.Image | npt.NDArray[Any] | torch.Tensor) -> Image.Image:
    """Read anything a user calls a picture.

    Transparency is composited over white, 16-bit values are divided by 257, the EXIF orientation is applied and of an
    animation the first frame is taken (of a PIL picture that was moved to another frame: that frame).

    Args:
        source: a path; the bytes of a picture file, as they are or in a `BytesIO`; a PIL picture; an array (H, W),
            (H, W, 1), (H, W, 3) or (H, W, 4) of uint8, bool, uint16, or floats in [0, 1]; a uint8 tensor (3, H, W) or
            (1, H, W).

    Returns:
        A new picture of mode RGB; the source is left as it is.

    Raises:
        InputError: the source cannot be read whole, or is not a picture.

    Example:
        >>> read(np.zeros((2, 3), np.uint8)).size
        (3, 2)
    """
    if isinstance(source, (str, os.PathLike)):
        return _from_path(Path(os.fsdecode(source)), _decoded)
    if isinstance(source, ENCODED):
        return _from_bytes(source.getvalue() if isinstance(source, io.BytesIO) else bytes(source))
    if isinstance(source, Image.Image):
        return _from_pil(source, f"the picture {_name_of(source)}")
    if isinstance(source, torch.Tensor):
        return _from_tensor(source)
    if isinstance(source, np.ndarray):
        return _from_array(source)
    raise InputError(f"A picture must be {_ACCEPTED}; given {type(source).__name__}.")


def expand(sources: Any, depth: int = 0) -> list[Any]:
    """Flatten one source or many into a list of pictures, each folder replaced by the picture files in it.

    Args:
        sources: what :func:`read` takes, a folder, or an iterable of these (nested ones too). Patterns such as
            ``*.jpg`` are taken literally: expanding them is the shell's work.
        depth: how many lists they lie in.

    Returns:
        The sources in the order given; a folder's files sorted by name, without hidden files and subfolders.

    Raises:
        InputError: a folder holds no picture or cannot be listed, or something is no source of pictures.

    Example:
        >>> expand(["a.jpg", ["b.jpg"]])
        ['a.jpg', 'b.jpg']
    """
    if isinstance(sources, (str, os.PathLike)):
        path = Path(os.fsdecode(sources))
        return list(_from_folder(path)) if _is_folder(path) else [sources]
    if isinstance(sources, (Image.Image, np.ndarray, torch.Tensor, *ENCODED)):
        return [sources]
    if depth > DEEPEST:
        raise InputError(f"The pictures lie in lists in lists, more than {DEEPEST} of them: give them in one list.")
    if not isinstance(sources, Iterable):
        raise InputError(f"A picture must be {_ACCEPTED}, or a folder or list of them; given {type(sources).__name__}.")
    return [picture for source in sources for picture in expand(source, depth + 1)]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name too long for the file system; reading it will say so
        return False


def _from_folder(folder: Path) -> list[Path]:
    try:
        files = [file for file in folder.iterdir() if file.suffix.lower() in EXTENSIONS and file.is_file()]
    except OSError as error:
        raise InputError(f"Cannot list the folder {folder} ({error.strerror}): check its permissions.") from error
    found = sorted(file for file in files if not file.name.startswith("."))
    if not found:
        kinds = ", ".join(extension.removeprefix(".") for extension in EXTENSIONS)
        raise InputError(f"The folder {folder} holds no pictures ({kinds}): give a folder that does, or the files.")
    return found


def refuse_broken(paths: Sequence[str | os.PathLike[Any]]) -> None:
    """Refuse files that are no pictures, or broken ones, before any work is done.

    The first is read whole; of the others only the beginning is looked at, and of no more than `LOOKED_AT`.
    """
    said = ""
    broken = 0
    for i, path in enumerate(paths[:LOOKED_AT]):
        try:
            _from_path(Path(os.fsdecode(path)), _decoded if i == 0 else _opened)
        except InputError as error:
            said = said or str(error)
            broken += 1
    if broken > 1:
        said += f" {broken} of {len(paths)} pictures cannot be opened."
    if broken:
        raise InputError(said)


def _from_path(path: Path, look: Callable[[BinaryIO, str], Image.Image]) -> Image.Image:
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder, not a picture: give one of the files in it.")
        if not path.is_file():
            raise InputError(f"There is no picture file {path}: check the name and the folder it is looked for in.")
        with path.open("rb") as handle:
            if not handle.read(1):
                raise InputError(f"{path} is an empty file: download or copy the picture again.")
            handle.seek(0)
            return look(handle, str(path))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot read {path} ({why}): check the file's permissions.") from error


def _from_bytes(data: bytes) -> Image.Image:
    if not data:
        raise InputError("A picture given as bytes is empty: give the whole content of a picture file.")
    return _decoded(io.BytesIO(data), f"the picture given as {len(data):,} bytes")


def _opened(handle: BinaryIO, name: str) -> Image.Image:
    """A picture whose beginning was read, and no pixel yet."""
    Image.init()
    formats = [name for name in _FORMATS if name in Image.OPEN]
    try:
        with _FILTERS, warnings.catch_warnings():
            # Large but not absurd pictures are fine here; the absurd ones still raise DecompressionBombError.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(handle, formats=formats)
    except UnidentifiedImageError as error:
        raise InputError(f"{name} is not a picture file: give a JPEG, PNG, GIF, WebP, TIFF or BMP file.") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} has too many pixels to be opened safely: make it smaller first.") from error
    except Exception as error:  # PIL's decoders answer a broken header with nearly any exception type
        raise InputError(f"{name} is a broken picture file ({error}): download or copy it again.") from error


def _decoded(handle: BinaryIO, name: str) -> Image.Image:
    picture = _opened(handle, name)
    with picture:
        converted = _from_pil(picture, name)
    if picture.format in ("JPEG", "MPO") and ImageFile.LOAD_TRUNCATED_IMAGES and _ends_early(handle):
        raise InputError(f"{name} is a truncated picture file: download or copy it again.")
    return converted


def _ends_early(handle: BinaryIO) -> bool:
    """Tell whether a JPEG lacks its end marker; asked only where the process told PIL to pass over such files."""
    handle.seek(0)
    data = handle.read()
    start_of_scan, end_of_image = b"\xff\xda", b"\xff\xd9"
    return data.rfind(end_of_image) < data.rfind(start_of_scan)


def _name_of(picture: Image.Image) -> str:
    filename = getattr(picture, "filename", "")
    return os.fsdecode(filename) if filename else f"of mode {picture.mode} and size {picture.size}"


def _from_pil(picture: Image.Image, name: str) -> Image.Image:
    if 0 in picture.size:
        raise InputError(f"Cannot use {name}: it has no pixels (width x height is {picture.width} x {picture.height}).")
    try:
        picture.load()
    except MemoryError as error:
        raise InputError(f"Cannot read {name}: it does not fit in memory; make it smaller first.") from error
    except Exception as error:  # as above: a broken body may raise OSError, SyntaxError, struct.error, EOFError, ...
        raise InputError(f"Cannot read {name} whole ({error}): it is truncated or broken, copy it again.") from error
    return _on_white(_upright(picture), name)


def _upright(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except (SyntaxError, struct.error, ValueError, TypeError, KeyError, OSError):
        # Every viewer shows a picture whose EXIF block is damaged; the block then says nothing about orientation.
        return picture


def _on_white(picture: Image.Image, name: str) -> Image.Image:
    if picture.mode == "F" or picture.mode.startswith("I"):
        values = np.asarray(picture)
        shades = _eight_bit_float(values, name) if picture.mode == "F" else _eight_bit_integer(values, name)
        clear = picture.info.get("transparency")
        return Image.fromarray(shades if clear is None else np.where(values == clear, np.uint8(255), shades)).convert(
            "RGB"
        )
    if picture.mode == "La":
        picture = picture.convert("LA")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    layer = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _eight_bit_integer(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise InputError(
            f"Cannot use {name}: its integer values run from {low} to {high}, and pictures of more than 8 bits must "
            "lie in 0 to 65535; rescale them."
        )
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _eight_bit_float(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 255):  # so written that NaN fails too
        raise InputError(
            f"Cannot use {name}: its float values run from {low:g} to {high:g}, and must lie in 0 to 1 or in 0 to 255; "
            "rescale them."
        )
    shades: npt.NDArray[np.uint8] = np.rint(values * 255 if high <= 1 else values).astype(np.uint8)
    return shades


def oddity(tensor: torch.Tensor) -> tuple[str, str] | None:
    """What keeps the numbers of a tensor from lying in memory one beside the other, and what to give instead."""
    kinds = {
        ("on the device meta, where there are no numbers", "one on the cpu"): tensor.is_meta,
        ("nested", "a list of tensors"): tensor.is_nested,
        ("quantised", "tensor.dequantize()"): tensor.is_quantized,
        ("sparse", "tensor.to_dense()"): tensor.layout != torch.strided,
    }
    return next((kind for kind, found in kinds.items() if found), None)


def check_plain(tensor: torch.Tensor) -> None:
    """Refuse a tensor whose numbers cannot be read as they are."""
    odd = oddity(tensor)
    if odd is not None:
        raise InputError(f"An image must be a plain tensor, but one was given that is {odd[0]}: give {odd[1]}.")


def _from_tensor(tensor: torch.Tensor) -> Image.Image:
    check_plain(tensor)
    shape = tuple(tensor.shape)
    if tensor.is_floating_point():
        raise InputError(
            f"A float tensor (given {tensor.dtype}, shape {shape}) is taken as a model input that is already "
            "normalised, not as a picture: as a picture, give it as uint8 (3, H, W)."
        )
    if tensor.dtype != torch.uint8 or tensor.ndim != 3 or shape[0] not in (1, 3):
        raise InputError(
            f"A picture tensor must be uint8 of shape (3, H, W) or (1, H, W), one picture at a time; "
            f"given {tensor.dtype} of shape {shape}."
        )
    return _from_array(tensor.permute(1, 2, 0).cpu().numpy())


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    shape = array.shape
    if array.ndim not in (2, 3) or (array.ndim == 3 and shape[2] not in (1, 3, 4)):
        raise InputError(
            f"A picture array must have shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), channels last; given {shape}."
        )
    if array.size == 0:
        raise InputError(f"A picture array must have pixels; given shape {shape}.")
    pixels = np.ascontiguousarray(_eight_bit_array(array.squeeze(2) if shape[2:] == (1,) else array))
    return _on_white(Image.fromarray(pixels), "the array")


def _eight_bit_array(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.newbyteorder("=") == np.uint16:
        return _eight_bit_integer(array, "the array")
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"A picture array must be uint8, uint16, bool or floats in [0, 1]; given {array.dtype}.")
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):  # so written that NaN fails too
        raise InputError(
            f"A float picture array must lie in [0, 1]; given {low:g} to {high:g}: rescale it, or give uint8."
        )
    return np.rint(array.astype(np.float64) * 255).astype(np.uint8)
