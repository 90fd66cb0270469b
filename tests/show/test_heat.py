"""Colours mean what the legend says: direction, symmetry, zero, limits, and calm at the edges."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.errors import InputError
from vitrail.show import colourise, overlay, scale, upsample


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def photo(width: int = 60, height: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8))


def bump(size: int = 14) -> np.ndarray:
    row, column = np.mgrid[:size, :size] / size
    return np.exp(-((row - 0.4) ** 2 + (column - 0.6) ** 2) / 0.05)


def luminance(colours: np.ndarray) -> np.ndarray:
    return colours @ np.array([0.2126, 0.7152, 0.0722])


def test_signed_colours_are_white_at_zero_red_for_blue_against():
    (against, none, for_it) = colourise(np.array([[-2.0, 0.0, 2.0]]))[0].astype(int)
    assert none.tolist() == [255, 255, 255]
    assert for_it[0] > for_it[2] + 80
    assert against[2] > against[0] + 80


def test_signed_colours_are_symmetric():
    heat = np.linspace(-1, 1, 21)[None]
    drawn, mirrored = colourise(heat), colourise(-heat)
    assert (drawn == mirrored[:, ::-1]).all()
    strength = 255 - luminance(drawn[0])
    assert np.abs(strength - strength[::-1]).max() < 0.25 * strength.max()
    assert (np.diff(strength[10:]) > 0).all()


def test_unsigned_colours_grow_brighter():
    brightness = luminance(colourise(np.linspace(0, 1, 100)[None])[0])
    assert (np.diff(brightness) > -0.5).all()
    assert brightness[-1] > brightness[0] + 200


def test_signed_is_decided_by_negative_mass():
    heat = bump()
    assert not scale(heat).signed
    assert not scale(heat - 1e-6).signed
    assert scale(heat - 0.3).signed
    assert scale(-heat).signed
    assert scale(heat, signed=True).signed
    assert not scale(heat - 0.3, signed=False).signed


MAPS = ("smooth", "one hot", "long tail", "blocks", "two values", "offset", "all alike but one")


def made(kind: str, size: int) -> np.ndarray:
    generator, heat = np.random.default_rng(size), bump(size)
    if kind == "one hot":
        heat = heat * 1e-3
        heat[size // 3, size // 2] = 1
    elif kind == "long tail":
        heat = np.exp(2 * generator.normal(size=(size, size)))
    elif kind == "blocks":
        heat = np.kron(generator.random((size // 2, size // 2)) ** 6, np.ones((2, 2)))
    elif kind == "two values":
        heat = np.full((size, size), 0.093)
        heat[0, 0], heat[1, 1] = 0.711, 0.0
    elif kind == "offset":
        heat = heat + 40
    elif kind == "all alike but one":
        heat = np.zeros((size, size))
        heat[0, 0] = 1e-20
    return heat


@pytest.mark.parametrize("size", [4, 14, 62, 64, 224])
@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("signed", [False, True])
def test_what_is_drawn_follows_the_numbers(kind, size, signed):
    """Never out of order, and the ratio of two cells is kept; in maps of pixels to a factor of four."""
    heat = made(kind, size)
    chosen = scale(heat, signed=signed)
    above, drawn = (heat if signed else heat - heat.min()).flatten(), np.abs(chosen(heat)).flatten()
    order = above.argsort(kind="stable")
    assert (np.diff(drawn[order]) >= 0).all()
    exact = above / above.max()
    assert drawn.max() == 1
    if size < 64:
        assert np.allclose(drawn, exact, atol=1e-12), "cells: half as much evidence is half as strong"
    assert (drawn >= exact - 1e-12).all()
    assert (drawn <= 4 * exact + 1e-12).all()
    mirrored = np.abs(scale(-heat, signed=True)(-heat)).flatten()
    assert not signed or (mirrored == drawn).all(), "the same for evidence against"


def test_regions_of_pixel_maps_are_not_cut_and_single_pixels_are():
    heat = np.random.default_rng(0).random((224, 224)) * 0.05
    heat[32:64, 32:64] = 1
    assert not scale(heat).cut
    assert scale(heat).high == pytest.approx(1)
    heat[200, 200] = 3
    cut = scale(heat)
    assert cut.cut
    assert cut.high == pytest.approx(1, rel=0.02), "the region is drawn in full strength all the same"


def test_sparse_and_dense_maps_of_mda_look_different():
    """Gamma 0: one cell of 0.711 among cells of 0.093; gamma 1: all of them alike."""
    sparse, dense = np.zeros((14, 14)), np.zeros((14, 14))
    sparse[4:10, 4:10], dense[4:10, 4:10] = 0.093, 0.5
    sparse[5, 5], dense[5, 5] = 0.711, 0.711
    picture = Image.new("RGB", (140, 140), (90, 90, 90))
    drawn = [np.asarray(overlay(picture, heat, mode="nearest")).astype(int) for heat in (sparse, dense)]
    assert np.abs(drawn[0] - drawn[1])[80, 80].max() > 60
    assert (drawn[0][55, 55] == drawn[1][55, 55]).all()
    assert luminance(drawn[0])[80, 80] < 0.6 * luminance(drawn[0])[55, 55]


def test_a_lone_patch_above_rounding_noise_stays_alone():
    heat = np.random.default_rng(0).random((14, 14)) * 1e-9
    heat[3, 4] = 1.0
    assert scale(heat).high == pytest.approx(1.0)


def test_maps_far_above_zero_use_all_colours():
    assert np.abs(colourise(bump() + 50).astype(int) - colourise(bump())).max() <= 2


def test_limit_is_kept():
    heat = np.array([[0.0, 0.5, 1.0, 4.0]])
    assert scale(heat, 2.0).high == 2.0
    assert (colourise(heat, limit=1.0)[0, 2] == colourise(heat, limit=1.0)[0, 3]).all()
    assert (colourise(heat, limit=8.0)[0, 3] == colourise(np.array([[0.0, 1.0]]), limit=2.0)[0, 1]).all()
    for limit in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="limit"):
            colourise(heat, limit=limit)


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e-30, 1e30])
@pytest.mark.parametrize("size", [1, 3, 14])
def test_constant_maps_draw_calmly(value, size):
    heat = np.full((size, size), value, np.float32)
    drawn = np.asarray(overlay(photo(), heat))
    assert drawn.shape == (40, 60, 3)
    assert len(np.unique(colourise(heat).reshape(-1, 3), axis=0)) == 1


def test_rounding_noise_on_a_constant_map_is_not_stretched():
    heat = 0.1 + np.random.default_rng(0).random((14, 14)) * 1e-8
    assert len(np.unique(colourise(heat).reshape(-1, 3), axis=0)) == 1


@pytest.mark.parametrize(
    "draw", [scale, colourise, lambda heat: overlay(photo(), heat), lambda heat: upsample(heat, (4, 4))]
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(draw):
    for value in (np.nan, np.inf, -np.inf):
        heat = bump()
        heat[2, 2] = value
        with pytest.raises(InputError, match="1 of its 196"):
            draw(heat)
    for shape in ((3,), (1, 4, 4), (0, 4)):
        with pytest.raises(InputError, match="shape"):
            draw(np.zeros(shape))


def test_upsample_is_torch_bilinear():
    heat = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(heat)[None, None], size=(33, 21), mode="bilinear", align_corners=False
    )
    assert upsample(heat, (33, 21)).dtype == np.float32
    assert np.abs(upsample(heat, (33, 21)) - expected[0, 0].numpy()).max() < 1e-6


def test_upsample_nearest_repeats_and_shrinking_averages():
    heat = np.arange(6.0).reshape(2, 3)
    assert (upsample(heat, (4, 9), "nearest") == np.kron(heat, np.ones((2, 3)))).all()
    checkers = np.indices((64, 64)).sum(0) % 2
    assert np.abs(upsample(checkers, (4, 4)) - 0.5).max() < 0.05
    with pytest.raises(InputError, match="bicubic"):
        upsample(heat, (4, 4), "bicubic")  # type: ignore[arg-type]


def test_signed_overlay_colours_the_evidence_alone():
    """A red picture is no evidence: without any it is greyed and light, whatever its colours."""
    heat = np.zeros((4, 6))
    heat[0, 0], heat[3, 5] = 1.0, -1.0
    for colour in ((178, 24, 43), (33, 102, 172), (30, 140, 60), (20, 20, 20)):
        drawn = np.asarray(overlay(Image.new("RGB", (60, 40), colour), heat, mode="nearest")).astype(int)
        shown, plus, minus = drawn[20, 30], drawn[5, 5], drawn[35, 55]
        assert np.ptp(shown) < 0.25 * np.ptp(colour) + 1
        assert luminance(shown) > luminance(np.array(colour))
        assert plus[0] - plus[2] > shown[0] - shown[2] + 50
        assert minus[2] - minus[0] > shown[2] - shown[0] + 50


def test_signed_overlay_reddens_and_blues_with_the_value():
    grey = Image.new("RGB", (4, 1), (128, 128, 128))
    heat = np.array([[-1.0, -0.5, 0.5, 1.0]])
    shift = np.asarray(overlay(grey, heat, mode="nearest"))[0].astype(int)
    towards_red = shift[:, 0] - shift[:, 2]
    assert towards_red[3] > towards_red[2] > 0 > towards_red[1] > towards_red[0]
    assert towards_red[2] == pytest.approx(towards_red[3] / 2, abs=1)


def test_unsigned_overlay_greys_the_rest_and_colours_the_evidence():
    heat = np.zeros((4, 6))
    heat[0, 0] = 1.0
    picture = Image.new("RGB", (60, 40), (30, 140, 60))
    drawn = np.asarray(overlay(picture, heat, mode="nearest")).astype(int)
    assert np.ptp(drawn[20, 30]) < 0.4 * np.ptp([30, 140, 60])
    assert luminance(drawn[5, 5]) > luminance(drawn[20, 30]) + 40


def test_no_opacity_is_the_picture():
    for heat in (bump(), bump() - 0.5):
        assert (np.asarray(overlay(photo(), heat, alpha=0)) == np.asarray(photo())).all()


def test_overlay_leaves_its_inputs_alone_and_takes_any_mode_and_size():
    picture, heat = photo(), bump()
    before, heat_before = np.asarray(picture).copy(), heat.copy()
    assert overlay(picture, heat).size == picture.size
    assert (np.asarray(picture) == before).all()
    assert (heat == heat_before).all()
    for mode in ("L", "RGBA", "P", "1"):
        assert overlay(picture.convert(mode), heat).mode == "RGB"
    assert overlay(Image.new("RGB", (1, 1)), heat).size == (1, 1)


def test_contour_outlines_the_region():
    heat = np.zeros((4, 6))
    heat[1:3, 2:4] = 1.0
    picture = Image.new("RGB", (60, 40), (90, 90, 90))
    plain = np.asarray(overlay(picture, heat, mode="nearest")).astype(int)
    lined = np.asarray(overlay(picture, heat, mode="nearest", contour=0.5)).astype(int)
    changed = (plain != lined).any(-1)
    assert lined[10, 25].tolist() == [255, 255, 255], "just inside"
    assert lined[9, 25].tolist() == [40, 40, 40], "just outside"
    assert not changed[12:28, 22:38].any()
    assert not changed[:8].any()
    assert (np.asarray(overlay(picture, heat * 0, contour=0.0)) == np.asarray(overlay(picture, heat * 0))).all()


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"alpha": -0.1}, {"contour": 2.0}, {"alpha": float("nan")}])
def test_fractions_are_checked(options):
    with pytest.raises(InputError, match=next(iter(options))):
        overlay(photo(), bump(), **options)


def test_importing_show_does_not_import_matplotlib_and_drawing_does_not_touch_pyplot():
    program = (
        "import sys, vitrail.show as show, numpy as np\n"
        "assert not any(name.split('.')[0] == 'matplotlib' for name in sys.modules)\n"
        "show.strip(np.eye(3)[None], ['one'])\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
