"""A picture shown in part is the same picture whether pixels or embeddings are mixed; hidden patches may be gone."""

import pytest
import torch
from torch import Tensor

from helpers import zoo
from vitrail import InputError
from vitrail.model import Target, View
from vitrail.perturb import PixelCanvas, RemovalCanvas, Responder, TokenCanvas, cell_canvas, grid_labels


def some(view: View, images: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    one, other = torch.randn(2, images, 3, *view.size, generator=generator)
    return one, other


@pytest.mark.parametrize("name", zoo.TOKEN_MODELS)
def test_mixing_embeddings_is_mixing_patches(name: str) -> None:
    view = zoo.view_of(name)
    images, noise = some(view)
    fills = [noise, torch.zeros_like(images)]
    canvas = cell_canvas(view, images, fills)
    pixels = PixelCanvas(view, images, fills, grid_labels(view.size, view.grid))
    assert isinstance(canvas, TokenCanvas)
    shown = torch.rand(6, canvas.cells, generator=torch.Generator().manual_seed(0)) < 0.5
    which, fill = torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([0, 0, 1, 1, 0, 1])
    with torch.no_grad():
        found, expected = canvas.logits(which, shown, fill), pixels.logits(which, shown, fill)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_other_models_and_other_grids_are_mixed_in_pixels() -> None:
    view = zoo.view_of("resnet50")
    images, noise = some(view, 1)
    canvas = cell_canvas(view, images, [noise])
    assert isinstance(canvas, PixelCanvas)
    assert canvas.cells == 16
    vit = zoo.view_of("vit_base_patch32_224")
    more = some(vit)[0], [some(vit)[1]]
    assert isinstance(cell_canvas(vit, *more, (5, 5)), PixelCanvas)
    shown = torch.zeros(1, 16, dtype=torch.bool)
    with torch.no_grad():
        hidden = canvas.logits(torch.tensor([0]), shown)
        shown[0, 0] = True
        corner = noise.clone()
        corner[:, :, :32, :32] = images[:, :, :32, :32]
        torch.testing.assert_close(hidden, view.logits(noise))
        torch.testing.assert_close(canvas.logits(torch.tensor([0]), shown), view.logits(corner))


def test_pixels_can_be_shown_by_halves_and_patches_cannot() -> None:
    view = zoo.view_of("vit_base_patch32_224")
    images, noise = some(view)
    which = torch.tensor([1])
    with torch.no_grad():
        found = PixelCanvas(view, images, [noise]).logits(which, torch.full((1, 224 * 224), 0.25))
        torch.testing.assert_close(found, view.logits(0.25 * images[1:] + 0.75 * noise[1:]), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="shown or hidden whole"):
        TokenCanvas(view, images, [noise]).logits(which, torch.full((1, 49), 0.25))


def test_each_image_may_have_regions_of_its_own() -> None:
    view = zoo.view_of("vit_base_patch32_224")
    images, noise = some(view)
    labels = torch.stack([grid_labels((224, 224), (1, 2)), grid_labels((224, 224), (2, 1))])
    canvas = PixelCanvas(view, images, [noise], labels)
    mixed = noise.clone()
    mixed[0, :, :, :112], mixed[1, :, :112] = images[0, :, :, :112], images[1, :, :112]
    with torch.no_grad():
        found = canvas.logits(torch.arange(2), torch.tensor([[True, False]] * 2))
        torch.testing.assert_close(found, view.logits(mixed))


def test_removed_patches_are_not_there() -> None:
    view = zoo.view_of("vit_base_patch32_224")
    images, _ = some(view)
    canvas = RemovalCanvas(view, images)
    shown = torch.arange(49)[None].expand(2, -1) < 20
    with torch.no_grad():
        layout = view.layout(view.size)
        expected = view.respond(view.embed(images), shown, layout, "mask")
        torch.testing.assert_close(canvas.logits(torch.arange(2), shown), expected, rtol=1e-4, atol=1e-4)


def test_a_grid_that_does_not_fit() -> None:
    assert grid_labels((5, 3), (2, 1)).tolist() == [[0] * 3, [0] * 3, [0] * 3, [1] * 3, [1] * 3]
    with pytest.raises(InputError, match="a grid of 9 x 1 cells does not fit 5 x 3 pixels"):
        grid_labels((5, 3), (9, 1))


# ---------------------------------------------------------------------------------------------------- the responder


def responder(most: int | None = None, score: str = "probability") -> tuple[Responder, View, Tensor]:
    view = zoo.view_of("vit_base_patch32_224")
    images, _ = some(view, 3)
    canvas = cell_canvas(view, images, [torch.zeros_like(images)])
    return Responder(canvas, Target(torch.tensor([4, 5, 6])), score, most=most), view, images


def test_scores_do_not_depend_on_the_parts_and_are_counted() -> None:
    ask, view, _ = responder()
    shown = torch.rand(3, 5, 49, generator=torch.Generator().manual_seed(1)) < 0.5
    forwards = view.meter.forwards
    whole = ask.each(shown)
    assert view.meter.forwards == forwards + 15
    torch.testing.assert_close(responder(most=4)[0].each(shown), whole, rtol=1e-4, atol=1e-6)
    one_by_one = torch.stack(
        [torch.stack([ask(torch.tensor([i]), shown[i, k : k + 1])[0] for k in range(5)]) for i in range(3)]
    )
    torch.testing.assert_close(one_by_one, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ask.each(shown[0])[0], whole[0], rtol=1e-4, atol=1e-6)


def test_probability_and_logit_of_the_whole_picture() -> None:
    everything = torch.ones(1, 49, dtype=torch.bool)
    ask, view, images = responder()
    with torch.no_grad():
        logits = view.logits(images)
    rows = torch.arange(3)
    torch.testing.assert_close(ask.each(everything)[:, 0], logits.double().softmax(1)[rows, rows + 4])
    torch.testing.assert_close(responder(score="logit")[0].each(everything)[:, 0], logits[rows, rows + 4])


def test_halves_when_memory_runs_out_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, _, _ = responder(most=8)
    shown = torch.rand(3, 5, 49, generator=torch.Generator().manual_seed(1)) < 0.5
    expected = ask.each(shown)
    sizes: list[int] = []
    answer = View.answer

    def small(self: View, tokens: Tensor, layout: object) -> Tensor:
        sizes.append(len(tokens))
        if len(tokens) > 3:
            raise torch.OutOfMemoryError("too much")
        return answer(self, tokens, layout)

    monkeypatch.setattr(View, "answer", small)
    torch.testing.assert_close(ask.each(shown), expected, rtol=1e-4, atol=1e-6)
    assert sizes[:3] == [8, 4, 2]
    assert ask.most == 2
    monkeypatch.setattr(View, "answer", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none at all")))
    with pytest.raises(torch.OutOfMemoryError):
        ask.each(shown)


def test_a_compiled_model_answers_the_same() -> None:
    ask, view, _ = responder()
    shown = torch.rand(3, 2, 49, generator=torch.Generator().manual_seed(1)) < 0.5
    expected = ask.each(shown)
    with view.using(None, compiled=True):
        torch.testing.assert_close(ask.each(shown), expected, rtol=1e-3, atol=1e-5)
    assert not view.compiled
