"""The models every part of vitrail must work on, built without downloads (random weights, shrunk where large)."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import torch
from torch import nn

from vitrail.model import Need, View, load

TOKENS = frozenset(Need) - {Need.RELU}
MAPS = frozenset({Need.FEATURES, Need.GRADIENTS})
RELU = MAPS | {Need.RELU}


@dataclass(frozen=True)
class Entry:
    """A model and what is true of it."""

    build: Callable[[], nn.Module]
    size: tuple[int, int]
    grid: tuple[int, int]
    prefix: int | None = None  # None: not a token model
    depth: int = 0
    reads: str = ""  # what the head reads: prefix, patches, both, pool
    offers: frozenset[Need] = TOKENS
    channels_last: bool = False


def _timm(name: str, **options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, **options)

    return build


def _torchvision() -> nn.Module:
    import torchvision

    model = torchvision.models.VisionTransformer(224, 32, 3, 3, 48, 96, num_classes=12)  # vit_b_32, made small
    nn.init.normal_(model.heads.head.weight, std=0.02)  # torchvision starts with a head of zeros
    return model


def _hf_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=96, num_labels=7)
    )


def _hf_dinov2() -> nn.Module:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersForImageClassification

    return Dinov2WithRegistersForImageClassification(
        Dinov2WithRegistersConfig(
            hidden_size=48, num_hidden_layers=3, num_attention_heads=3, image_size=224, patch_size=14, num_labels=7
        )
    )


def _open_clip() -> nn.Module:
    import open_clip

    from vitrail.model import zero_shot

    clip = open_clip.create_model("ViT-B-32", pretrained=None).eval()
    return zero_shot(clip, open_clip.get_tokenizer("ViT-B-32"), ["a cat", "a dog", "a boat"], "open_clip/ViT-B-32")[0]


_LARGE = {"embed_dim": 48, "num_heads": 3, "depth": 3, "num_classes": 9}

ZOO: dict[str, Entry] = {
    # Token models, the quick ones first.
    "dinov2_reg4": Entry(
        _timm("vit_small_patch14_reg4_dinov2", img_size=112, init_values=0.5, **_LARGE),
        (112, 112),
        (8, 8),
        5,
        3,
        "prefix",
    ),
    "torchvision_vit_b_32": Entry(_torchvision, (224, 224), (7, 7), 1, 3, "prefix"),
    "siglip": Entry(_timm("vit_base_patch16_siglip_224", **_LARGE), (224, 224), (14, 14), 0, 3, "pool"),
    "eva_large": Entry(_timm("eva_large_patch14_196", **_LARGE), (196, 196), (14, 14), 1, 3, "patches"),
    "beit_base": Entry(
        _timm("beit_base_patch16_224", init_values=0.5, **_LARGE), (224, 224), (14, 14), 1, 3, "patches"
    ),
    "hf_vit": Entry(_hf_vit, (224, 224), (14, 14), 1, 3, "prefix"),
    "hf_dinov2_registers": Entry(_hf_dinov2, (224, 224), (16, 16), 5, 3, "both"),
    "average_pooled": Entry(
        _timm("vit_tiny_patch16_224", depth=3, global_pool="avg"), (224, 224), (14, 14), 1, 3, "patches"
    ),
    "deit_tiny_distilled": Entry(
        _timm("deit_tiny_distilled_patch16_224", depth=3), (224, 224), (14, 14), 2, 3, "prefix"
    ),
    "eva02_tiny": Entry(_timm("eva02_tiny_patch14_224", depth=3, num_classes=9), (224, 224), (16, 16), 1, 3, "patches"),
    "non_square": Entry(
        _timm("vit_tiny_patch16_224", depth=3, dynamic_img_size=True), (224, 320), (14, 20), 1, 3, "prefix"
    ),
    "vit_tiny_patch16_224": Entry(_timm("vit_tiny_patch16_224"), (224, 224), (14, 14), 1, 12, "prefix"),
    "vit_base_patch32_224": Entry(_timm("vit_base_patch32_224", depth=3), (224, 224), (7, 7), 1, 3, "prefix"),
    "open_clip_vit_b_32": Entry(_open_clip, (224, 224), (7, 7), 1, 12, "prefix"),
    # Others, likewise.
    "densenet121": Entry(_timm("densenet121", block_config=(3, 3, 4, 3)), (128, 128), (4, 4), offers=RELU),
    "resnet50": Entry(_timm("resnet50", layers=(1, 1, 2, 1)), (128, 128), (4, 4), offers=RELU),
    "convnext_tiny": Entry(_timm("convnext_tiny", depths=(1, 1, 2, 1)), (128, 128), (4, 4), offers=MAPS),
    "tf_efficientnet_lite0": Entry(_timm("tf_efficientnet_lite0"), (224, 224), (7, 7), offers=RELU),
    "swin_tiny": Entry(
        _timm("swin_tiny_patch4_window7_224", depths=(2, 2, 2, 2)), (224, 224), (7, 7), offers=MAPS, channels_last=True
    ),
}

TOKEN_MODELS = [name for name, entry in ZOO.items() if entry.prefix is not None]
OTHER_MODELS = [name for name, entry in ZOO.items() if entry.prefix is None]


def facts(entry: Entry, needs: frozenset[Need]) -> frozenset[tuple[str, object]]:
    """What of a model makes a difference to a method with these needs; of one that cannot serve it, what it lacks."""
    if needs - entry.offers:
        return frozenset({("lacks", needs - entry.offers)})
    tokens = entry.prefix is not None
    found: set[tuple[str, object]] = {("tokens", tokens), ("oblong", entry.size[0] != entry.size[1])}
    if needs & MAPS and not tokens:
        found.add(("channels last", entry.channels_last))
    if needs - {Need.GRADIENTS, Need.RELU} and tokens:
        found.add(("prefix tokens", min(entry.prefix or 0, 2)))
    if needs & TOKENS - MAPS:
        found.add(("the head reads", entry.reads))
    return frozenset(found)


@cache
def fewest(needs: frozenset[Need]) -> tuple[str, ...]:
    """The fewest models that show a method with these needs all that makes a difference to it, quick ones first."""
    of_each = {name: facts(entry, needs) for name, entry in ZOO.items()}
    wanted = frozenset().union(*of_each.values())
    for count in range(1, len(ZOO) + 1):
        for models in combinations(ZOO, count):
            if frozenset().union(*(of_each[name] for name in models)) == wanted:
                return models
    raise AssertionError


@cache
def view_of(name: str) -> View:
    """The view of a model of the zoo, made once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(module(name), size=ZOO[name].size)


@cache
def double_view(name: str) -> View:
    """The view of a copy of that model in float64, to compare with peers and oracles."""
    return load(copy.deepcopy(module(name)).double(), size=ZOO[name].size)


@cache
def module(name: str) -> nn.Module:
    """The model of that name, always with the same weights; shared, so a test must not change it."""
    torch.manual_seed(0)
    return ZOO[name].build().eval()


def pictures(count: int, size: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Smooth random model inputs (B, 3, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 9, 9, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size, mode="bicubic", align_corners=False)
    return smooth + 0.1 * torch.randn(count, 3, *size, generator=generator)
