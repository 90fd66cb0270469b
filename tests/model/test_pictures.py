"""Every kind of picture a user may have is read right, or refused with a sentence that names it."""

import contextlib
import gc
import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageFile

from vitrail.errors import InputError
from vitrail.model import pictures

RED = (200, 30, 60)


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def photo(width: int = 64, height: int = 48) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def pixel(picture: Image.Image) -> tuple[int, ...]:
    assert picture.mode == "RGB"
    return tuple(np.asarray(picture)[0, 0].tolist())


@pytest.mark.parametrize(
    ("mode", "extension", "tolerance"),
    [
        ("RGB", "png", 0),
        ("RGB", "bmp", 0),
        ("RGB", "ppm", 0),
        ("RGB", "jpg", 4),
        ("RGB", "webp", 8),
        ("CMYK", "jpg", 4),
        ("CMYK", "tif", 0),
        ("YCbCr", "tif", 2),
        ("P", "gif", 4),
        ("P", "png", 4),
    ],
)
def test_colour_survives_every_mode_and_format(tmp_path, mode, extension, tolerance):
    path = tmp_path / f"picture.{extension}"
    Image.new("RGB", (16, 16), RED).convert(mode, palette=Image.Palette.ADAPTIVE).save(path)
    difference = np.abs(np.array(pixel(pictures.read(path))) - RED)
    assert difference.max() <= tolerance


def test_lab(tmp_path):
    to_lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
    ImageCms.applyTransform(Image.new("RGB", (2, 2), RED), to_lab).save(tmp_path / "lab.tif")
    assert np.abs(np.array(pixel(pictures.read(tmp_path / "lab.tif"))) - RED).max() <= 2


@pytest.mark.parametrize(("mode", "value", "shade"), [("L", 77, 77), ("1", 1, 255), ("1", 0, 0)])
def test_grey(tmp_path, mode, value, shade):
    Image.new(mode, (3, 2), value).save(tmp_path / "grey.png")
    assert pixel(pictures.read(str(tmp_path / "grey.png"))) == (shade,) * 3


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("RGBA", (*RED, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 128), (127, 127, 127)),
        ("RGBA", (*RED, 255), RED),
        ("LA", (0, 0), (255, 255, 255)),
        ("LA", (90, 255), (90, 90, 90)),
    ],
)
def test_transparency_is_composited_over_white(tmp_path, mode, colour, expected):
    Image.new(mode, (2, 2), colour).save(tmp_path / "clear.png")
    assert pixel(pictures.read(tmp_path / "clear.png")) == expected
    assert pixel(pictures.read(Image.new(mode, (2, 2), colour))) == expected


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_colour_key_becomes_white(tmp_path, mode):
    key = {"P": 0, "L": 0, "RGB": (0, 0, 0)}[mode]
    Image.new(mode, (2, 2), key).save(tmp_path / "key.png", transparency=key)
    assert pixel(pictures.read(tmp_path / "key.png")) == (255, 255, 255)


def test_palette_with_alpha_and_premultiplied_modes():
    assert pixel(pictures.read(Image.new("RGBA", (2, 2), (0, 0, 0, 0)).convert("PA"))) == (255, 255, 255)
    assert pixel(pictures.read(Image.new("RGBA", (2, 2), (*RED, 255)).convert("RGBa"))) == RED
    assert pixel(pictures.read(Image.new("LA", (2, 2), (90, 255)).convert("La"))) == (90, 90, 90)


@pytest.mark.parametrize("extension", ["png", "tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path, extension):
    values = np.array([[0, 257, 128 * 257, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"deep.{extension}")
    assert np.asarray(pictures.read(tmp_path / f"deep.{extension}"))[0, :, 1].tolist() == [0, 1, 128, 255]


def test_sixteen_bit_grey_of_other_kinds(tmp_path):
    Image.new("I;16B", (2, 2), 200 * 257).save(tmp_path / "big_endian.tif")
    assert pixel(pictures.read(tmp_path / "big_endian.tif")) == (200,) * 3
    assert pixel(pictures.read(Image.new("I", (2, 2), 65535))) == (255,) * 3
    with pytest.raises(InputError, match="70000"):
        pictures.read(Image.new("I", (2, 2), 70000))


def test_sixteen_bit_colour_png_is_read_as_eight_bit(tmp_path):
    chunk_values = np.array([[[65535, 32896, 0]]], ">u2")
    path = tmp_path / "deep.png"
    path.write_bytes(_sixteen_bit_png(chunk_values))
    assert pixel(pictures.read(path)) == (255, 128, 0)


def _sixteen_bit_png(values: np.ndarray) -> bytes:
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = values.shape
    lines = b"".join(b"\0" + line.tobytes() for line in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(("values", "shades"), [([0.0, 0.5, 1.0], [0, 128, 255]), ([0.0, 99.6, 255.0], [0, 100, 255])])
def test_float_tiff(tmp_path, values, shades):
    Image.fromarray(np.array([values], np.float32)).save(tmp_path / "float.tif")
    assert np.asarray(pictures.read(tmp_path / "float.tif"))[0, :, 0].tolist() == shades


@pytest.mark.parametrize("value", [-0.1, 300.0, float("nan")])
def test_float_tiff_out_of_range(tmp_path, value):
    Image.fromarray(np.array([[0.0, value]], np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(InputError, match=r"float\.tif.*rescale"):
        pictures.read(tmp_path / "float.tif")


@pytest.mark.parametrize("extension", ["gif", "webp", "png", "tif"])
def test_first_frame(tmp_path, extension):
    first, second = Image.new("RGB", (8, 8), "black"), Image.new("RGB", (8, 8), "white")
    first.save(tmp_path / f"many.{extension}", save_all=True, append_images=[second, first])
    assert max(pixel(pictures.read(tmp_path / f"many.{extension}"))) < 10


def test_exif_orientation_is_applied(tmp_path):
    picture = Image.new("RGB", (20, 10), "black")
    picture.paste((255, 255, 255), (0, 0, 10, 10))  # the left half
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by a quarter, clockwise
    picture.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    upright = pictures.read(tmp_path / "turned.jpg")
    assert upright.size == (10, 20)
    assert min(pixel(upright)) > 240
    assert np.asarray(upright)[-1, 0].max() < 15
    assert pictures.read(upright).size == (10, 20), "not turned twice"


def test_a_damaged_exif_block_does_not_matter(tmp_path):
    photo().save(tmp_path / "damaged.jpg", exif=b"Exif\0\0garbage")
    assert pictures.read(tmp_path / "damaged.jpg").size == (64, 48)


def test_one_pixel(tmp_path):
    Image.new("RGB", (1, 1), RED).save(tmp_path / "one.png")
    assert pictures.read(tmp_path / "one.png").size == (1, 1)


@pytest.mark.parametrize(
    ("options", "lenient"),
    [
        ({"format": "JPEG"}, False),
        ({"format": "JPEG", "progressive": True}, False),
        ({"format": "PNG"}, False),
        ({"format": "JPEG"}, True),  # another library in the process told PIL to accept half a picture
        ({"format": "JPEG", "progressive": True}, True),
    ],
)
def test_never_half_a_picture(tmp_path, monkeypatch, options, lenient):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    buffer = io.BytesIO()
    photo().save(buffer, **options)
    whole, path = buffer.getvalue(), tmp_path / "cut.jpg"
    for kept in (0.05, 0.3, 0.6, 0.9, 0.99):
        path.write_bytes(whole[: int(len(whole) * kept)])
        with pytest.raises(InputError, match=r"cut\.jpg"):
            pictures.read(path)
    path.write_bytes(whole)
    assert pictures.read(path).size == (64, 48)
    assert lenient == ImageFile.LOAD_TRUNCATED_IMAGES


def test_wrong_files_are_named(tmp_path):
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "words.jpg").write_text("not a picture at all")
    cases = {"missing.jpg": "no picture file", "empty.jpg": "empty", "words.jpg": "not a picture"}
    for name, reason in cases.items():
        with pytest.raises(InputError, match=reason) as caught:
            pictures.read(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
    with pytest.raises(InputError, match="folder"):
        pictures.read(tmp_path)
    with pytest.raises(InputError):
        pictures.read("x" * 5000)


def test_no_file_stays_open(tmp_path):
    for extension in ("jpg", "png", "gif", "tif", "webp"):
        photo().save(tmp_path / f"whole.{extension}")
        (tmp_path / f"cut.{extension}").write_bytes((tmp_path / f"whole.{extension}").read_bytes()[:300])
    photo().save(tmp_path / "many.gif", save_all=True, append_images=[photo().rotate(90)])
    (tmp_path / "words.jpg").write_text("not a picture at all")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for path in tmp_path.iterdir():
            with contextlib.suppress(InputError):
                pictures.read(path)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_postscript_is_refused(tmp_path):
    photo().save(tmp_path / "page.eps")
    with pytest.raises(InputError, match="not a picture"):
        pictures.read(tmp_path / "page.eps")


def test_no_permission(tmp_path, monkeypatch):
    photo().save(tmp_path / "locked.png")

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"locked\.png.*Permission denied"):
        pictures.read(tmp_path / "locked.png")


ENCODED = {"bytes": bytes, "bytearray": bytearray, "memoryview": memoryview, "BytesIO": io.BytesIO}


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_the_bytes_of_a_file_are_read_as_the_file(kind, form, tmp_path):
    photo().save(tmp_path / "picture", form)
    source = ENCODED[kind]((tmp_path / "picture").read_bytes())
    expected = np.asarray(pictures.read(tmp_path / "picture"))
    assert np.array_equal(pictures.read(source), expected)
    assert np.array_equal(pictures.read(source), expected), "reading leaves it as it was"
    assert pictures.expand([source, [source]]) == [source, source]


def test_a_stream_is_read_from_its_start():
    stream = io.BytesIO()
    photo().save(stream, "PNG")
    assert stream.tell() > 0
    assert pictures.read(stream).size == (64, 48)
    assert not stream.closed


@pytest.mark.parametrize("kind", ENCODED)
def test_bytes_that_are_no_picture_are_refused(kind, tmp_path, monkeypatch):
    photo().save(tmp_path / "a.png")
    photo().save(tmp_path / "page.eps")
    whole = (tmp_path / "a.png").read_bytes()
    for data, reason in (
        (b"", "is empty"),
        (b"I am a letter.", r"given as 14 bytes is not a picture file: give a JPEG"),
        ((tmp_path / "page.eps").read_bytes(), "is not a picture file"),
        (whole[: len(whole) // 2], r"Cannot read the picture given as .* bytes whole"),
    ):
        with pytest.raises(InputError, match=reason):
            pictures.read(ENCODED[kind](data))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"given as .* bytes has too many pixels"):
        pictures.read(ENCODED[kind](whole))


def test_decompression_bombs(tmp_path, monkeypatch):
    photo().save(tmp_path / "large.png")
    filters = list(warnings.filters)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48 - 1)  # PIL warns, which would be an error in this file
    assert pictures.read(tmp_path / "large.png").size == (64, 48)
    assert warnings.filters == filters
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"large\.png has too many pixels"):
        pictures.read(tmp_path / "large.png")


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3), (4, 5, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.uint16, ">u2", np.float16, np.float32, np.float64])
def test_arrays(shape, dtype):
    full = {"u1": 255, "b1": True, "u2": 65535}.get(np.dtype(dtype).str[1:], 1.0)
    array = np.full(shape, full, dtype)
    array[0, 0] = 0
    if shape[2:] == (4,):
        array[0, 0, 3] = full
    picture = pictures.read(array)
    assert picture.size == (5, 4)
    assert pixel(picture) == (0, 0, 0)
    assert np.asarray(picture)[1:].min() == 255


def test_array_values_are_kept():
    array = np.asarray(photo())
    assert (np.asarray(pictures.read(array)) == array).all()
    assert (np.asarray(pictures.read(array[:, ::-1])) == array[:, ::-1]).all()
    assert (np.asarray(pictures.read(torch.from_numpy(array.copy()).permute(2, 0, 1))) == array).all()
    assert np.asarray(pictures.read(torch.full((1, 2, 2), 9, dtype=torch.uint8))).max() == 9


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (np.full((2, 2, 3), 1.5), "1.5"),
        (np.full((2, 2, 3), -0.5), "-0.5"),
        (np.full((2, 2, 3), np.nan), "nan"),
        (np.zeros((2, 2), np.int64), "int64"),
        (np.zeros((3, 8, 9), np.uint8), "channels last"),
        (np.zeros(4, np.uint8), "shape"),
        (np.zeros((0, 4, 3), np.uint8), "pixels"),
        (torch.zeros(3, 4, 4), "model input"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "one picture at a time"),
        (torch.zeros(3, 0, 4, dtype=torch.uint8), "pixels"),
        (Image.new("RGB", (0, 3)), "no pixels"),
        (3.5, "float"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(wrong, reason):
    with pytest.raises(InputError, match=reason):
        pictures.read(wrong)


def test_the_source_is_left_alone():
    source = Image.new("RGBA", (2, 2), (*RED, 0))
    result = pictures.read(source)
    result.paste((1, 2, 3), (0, 0, 2, 2))
    assert source.mode == "RGBA"
    assert source.getpixel((0, 0)) == (*RED, 0)
    plain = Image.new("RGB", (2, 2), RED)
    pictures.read(plain).paste((1, 2, 3), (0, 0, 2, 2))
    assert pixel(plain) == RED


def test_looking_at_files_costs_little_and_says_how_many_are_broken(tmp_path, monkeypatch):
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path in paths:
        photo().save(path)
    pictures.refuse_broken(paths)
    paths[3].write_bytes(paths[3].read_bytes()[:2000])  # broken behind its beginning: told when it is read
    pictures.refuse_broken(paths)
    paths[4].write_text("no picture")
    with pytest.raises(InputError, match=r"4\.png is not a picture file: give .* file\.$"):
        pictures.refuse_broken(paths)
    with pytest.raises(InputError, match=r"Cannot read .*3\.png whole .* 2 of 6 pictures cannot be opened\.$"):
        pictures.refuse_broken([paths[3], *paths[:3], *paths[4:]])
    monkeypatch.setattr(pictures, "LOOKED_AT", 4)
    pictures.refuse_broken(paths)


def test_expand_lists_a_folder_by_name(tmp_path):
    for name in ("b.PNG", "a.jpg", "c.webp", ".hidden.jpg", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "inner.jpg").mkdir()
    assert [path.name for path in pictures.expand(tmp_path)] == ["a.jpg", "b.PNG", "c.webp"]
    assert [path.name for path in pictures.expand(str(tmp_path))] == ["a.jpg", "b.PNG", "c.webp"]


def test_expand_keeps_order_and_flattens(tmp_path):
    (tmp_path / "in_folder.png").touch()
    array, picture = np.zeros((2, 2), np.uint8), photo()
    found = pictures.expand(["z.jpg", tmp_path, (array, picture), "*.jpg"])
    assert found[0] == "z.jpg"
    assert found[1] == tmp_path / "in_folder.png"
    assert found[2] is array
    assert found[3] is picture
    assert found[4] == "*.jpg"
    assert pictures.expand("one.jpg") == ["one.jpg"]
    assert pictures.expand([]) == []


@pytest.mark.parametrize("wrong", [None, 7, ["a.jpg", 7]])
def test_expand_refuses_what_is_no_source(wrong):
    with pytest.raises(InputError, match="A picture must be"):
        pictures.expand(wrong)


def test_expand_refuses_a_folder_without_pictures(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="holds no pictures") as caught:
        pictures.expand([tmp_path])
    assert str(tmp_path) in str(caught.value)
