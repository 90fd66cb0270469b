"""Models that were misread, or that few parts fit: each is read rightly now, or refused in a sentence."""

from typing import Any

import pytest
import timm
import torch
from torch import nn

import vitrail
from helpers.homemade import near
from helpers.zoo import pictures
from vitrail.errors import InputError
from vitrail.method.relevance.lrp import CONSERVING
from vitrail.model import FROZEN, Need, View, load, trace_pixels, trace_tokens
from vitrail.model.anatomy.place import lie_there, one_patch_changed

SIZE = (64, 96)


def hugging_face(kind: str, model: str, **options: Any) -> View:
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, num_labels=5, **options)
    side = options.get("image_size")
    return load(getattr(transformers, model)(config).eval(), size=SIZE if side is None else (side, side))


def from_timm(name: str, **options: Any) -> View:
    torch.manual_seed(0)
    return load(timm.create_model(name, num_classes=5, **options).eval(), size=options.get("img_size", SIZE))


def parts_give_the_models_answer(view: View) -> bool:
    images = pictures(2, view.size)
    layout = view.layout(view.size)
    with torch.no_grad():
        return near(view.head(view.encode(view.embed(images), layout)[-1], layout), view.logits(images), 1e-4)


def test_latents_are_no_patches() -> None:
    view = hugging_face(
        *("perceiver", "PerceiverForImageClassificationLearned"),
        num_latents=16,
        d_latents=32,
        num_self_attends_per_block=2,
        num_self_attention_heads=2,
        num_cross_attention_heads=1,
        image_size=32,
    )
    assert view.offers == {Need.GRADIENTS}
    with pytest.raises(InputError, match="decompx needs a chain of transformer blocks"):
        vitrail.explain(view, pictures(1, (32, 32)), "decompx")


def test_one_attention_block_behind_convolutions_is_no_transformer() -> None:
    view = from_timm("efficientformer_l1", img_size=(224, 224))
    assert view.depth == 0
    assert view.grid == (7, 7)


@pytest.mark.parametrize("method", ["genatt", "rollout", "tis(masks=4)", "gradcam"])
@pytest.mark.parametrize(
    ("kind", "model", "options"),
    [
        (
            "levit",
            "LevitForImageClassification",
            {"hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [2, 2, 2], "key_dim": [8, 8, 8]},
        ),
        ("segformer", "SegformerForImageClassification", {"hidden_sizes": [16, 24, 32, 48]}),
        (
            "swinv2",
            "Swinv2ForImageClassification",
            {"embed_dim": 24, "depths": [2, 2, 2, 2], "num_heads": [1, 2, 2, 4]},
        ),
    ],
)
def test_stages_of_other_networks_answer_or_refuse(method: str, kind: str, model: str, options: dict[str, Any]) -> None:
    view = hugging_face(kind, model, **options, image_size=224)
    try:
        found = vitrail.explain(view, pictures(2, view.size), method, [1, 2])
    except InputError as refusal:
        found, words = None, str(refusal)
    assert " use " in words if found is None else found.maps.shape == (2, *view.grid)


def test_maps_of_a_transformer_inside_patches() -> None:
    view = from_timm("tnt_s_legacy_patch16_224", depth=2, img_size=(64, 64))
    found = vitrail.explain(view, pictures(2, view.size), "gradcam(relu=False)", [1, 2])
    assert found.maps.shape == (2, 4, 4)
    assert found.maps.std() > 0


def test_logits_under_another_name() -> None:
    view = hugging_face("pp_lcnet", "PPLCNetForImageClassification")
    images = pictures(1, SIZE)
    with torch.no_grad():
        own = view.model(images).last_hidden_state
        assert near(view.logits(images), own, 1e-4)


def test_packed_patches() -> None:
    import transformers

    vision = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    config = transformers.Siglip2Config(vision_config={**vision, "patch_size": 8, "num_patches": 64}, num_labels=5)
    model = transformers.Siglip2ForImageClassification(config).eval()
    view = load(model)
    assert view.size == (64, 64)
    view = load(model, size=SIZE)
    assert view.grid == (8, 12)
    assert view.depth == 2
    assert parts_give_the_models_answer(view)
    picture = pictures(1, SIZE)[0]
    patches = [
        picture[:, r : r + 8, c : c + 8].permute(1, 2, 0).flatten()
        for r in range(0, SIZE[0], 8)
        for c in range(0, SIZE[1], 8)
    ]
    with torch.no_grad():
        own = model(
            pixel_values=torch.stack(patches)[None],
            pixel_attention_mask=torch.ones(1, 96, dtype=torch.long),
            spatial_shapes=torch.tensor([[8, 12]]),
        ).logits
    assert near(view.logits(picture[None]), own)


def test_blended_softmaxes_are_read_as_one() -> None:
    view = from_timm("convit_tiny", depth=3, local_up_to_layer=2, img_size=(64, 64))
    assert Need.ATTENTION in view.offers
    assert view.depth == 2
    assert parts_give_the_models_answer(view)
    images = pictures(2, view.size)
    trace = view.trace(images, attention=True)
    blocks = view.model.blocks
    for state, found, block in zip(trace.states, trace.attention, blocks):
        with torch.no_grad():
            assert near(found.detach(), block.attn.get_attention(block.norm1(state.detach())))
    gradients = view.gradient(trace.logits[:, 0], trace.attention)
    assert all(g.abs().sum() > 0 for g in gradients)
    frozen = view.trace(images, attention=True, rule=FROZEN)
    assert near(frozen.attention[0].detach(), trace.attention[0].detach())


@pytest.mark.parametrize(
    ("name", "options", "grid", "depth"),
    [
        ("pit_ti_224", {"img_size": (128, 160)}, (8, 10), 6),
        ("samvit_base_patch16_224", {"embed_dim": 24, "num_heads": 2, "depth": 3, "img_size": (64, 96)}, (4, 6), 3),
        ("xcit_nano_12_p8_224", {"depth": 3, "img_size": (64, 96)}, (8, 12), 3),
    ],
)
def test_stages_and_squares_are_chains(name: str, options: dict[str, Any], grid: tuple[int, int], depth: int) -> None:
    view = from_timm(name, **options)
    assert Need.TOKENS in view.offers
    assert (view.grid, view.depth) == (grid, depth)
    assert parts_give_the_models_answer(view)
    found = vitrail.explain(view, pictures(2, view.size), "decompx", [1, 2])
    assert found.maps.shape == (2, *grid)
    assert found.maps.std() > 0


def test_patches_that_cannot_be_taken_away_are_refused() -> None:
    view = from_timm("pit_ti_224", img_size=(128, 128))
    with pytest.raises(InputError, match=r"patches cannot be taken away from PoolingVisionTransformer.*use a method"):
        vitrail.explain(view, pictures(1, view.size), "tis(masks=4)")


class Scrambled(nn.Module):
    """A patch embedding whose cells are handed on in another order."""

    def __init__(self, order: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.order = nn.Conv2d(3, 8, 8, 8), order

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images)
        return x.flatten(2)[..., self.order].view_as(x)


@pytest.mark.parametrize("kind", ["as they are", "transposed", "shuffled", "mirrored"])
def test_cells_in_another_order_are_found_out(kind: str) -> None:
    rows, columns = 6, 6
    plain = torch.arange(rows * columns)
    order = {
        "as they are": plain,
        "transposed": plain.view(rows, columns).T.flatten(),
        "shuffled": plain[torch.randperm(len(plain), generator=torch.Generator().manual_seed(0))],
        "mirrored": plain.flip(0),
    }[kind]
    image = pictures(1, (rows * 8, columns * 8))
    changed, cells = one_patch_changed(image, (rows, columns))
    with torch.no_grad():
        assert lie_there(Scrambled(order)(torch.cat([image, changed])), cells) == (kind == "as they are")


class Overwriting(nn.Module):
    """Changes its tensors in place, in every way there is, or not at all."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place = in_place
        self.first, self.second = nn.Conv2d(3, 4, 8, 8), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = self.second(x)
        if not self.in_place:
            return self.head((y + 0.5 + 0.5).relu()[..., :-1].sum((2, 3)))
        y.add_(0.5)  # the result is not looked at
        same = y
        same += 0.5
        nn.functional.relu(y, True)
        y[..., -1] *= 0
        return self.head(y.sum((2, 3)))


def test_relevance_follows_what_is_changed_in_place() -> None:
    images = pictures(2, (32, 32))
    found, expected = (load(Overwriting(in_place).eval(), size=(32, 32)) for in_place in (True, False))
    assert near(
        vitrail.explain(found, images, "lrp", [1, 2]).maps, vitrail.explain(expected, images, "lrp", [1, 2]).maps
    )
    assert found.overwrites
    assert not expected.overwrites


def test_relevance_of_models_that_add_positions_in_place() -> None:
    view = from_timm("naflexvit_base_patch16_gap", embed_dim=24, num_heads=2, depth=2, img_size=SIZE)
    images = pictures(2, SIZE)
    with torch.no_grad():
        own = view.logits(images)
    assert near(trace_pixels(view, images, CONSERVING, "plain")[0].detach(), own, 1e-4)
    assert near(trace_tokens(view, images, CONSERVING).logits.detach(), own, 1e-4)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.rows, self.head = nn.Conv2d(3, 8, 8, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows(self.patches(x).flatten(2).transpose(1, 2))[0].mean(1))


def test_recurrent_layers_have_no_relevance() -> None:
    view = load(Recurrent().eval(), size=(32, 32))
    with pytest.raises(InputError, match=r"no rule for recurrent layers \(LSTM\).*use another method"):
        vitrail.explain(view, pictures(1, (32, 32)), "lrp")
    assert vitrail.explain(view, pictures(1, (32, 32)), "ixg").maps.shape == (1, 32, 32)


def test_windows_before_the_blocks_are_no_attention_pool() -> None:
    view = from_timm(
        "swinv2_tiny_window8_256",
        img_size=(128, 128),
        embed_dim=24,
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 2, 4),
    )
    assert view.depth == 2
    assert not view.readout.attention
    assert vitrail.explain(view, pictures(2, view.size), "legrad", [1, 2]).maps.shape == (2, 8, 8)


def test_heads_that_lay_all_tokens_out_as_a_square() -> None:
    view = from_timm("pit_ti_224", img_size=SIZE)
    found = vitrail.explain(view, pictures(2, SIZE), "inflow", [1, 2]).maps
    assert found.shape == (2, *view.grid)
    assert torch.isfinite(found).all()


class Mixed(nn.Module):
    """Patches, each cell then a random mixture of all cells: no map of the picture."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.patches = nn.Conv2d(3, 8, 16, 16)
        self.mixture = nn.Linear(24, 24)
        self.cells = nn.Identity()
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cells = self.mixture(self.patches(x).tanh().flatten(2)).unflatten(2, (4, 6))
        return self.head(self.cells(cells).square().mean((2, 3)))


def test_a_grid_that_fits_a_few_patches_by_chance_is_no_map() -> None:
    view = load(Mixed(54).eval(), size=SIZE)
    assert view.features is not None
    assert view.features.module is view.model.patches
