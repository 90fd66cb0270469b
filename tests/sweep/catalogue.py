"""The smallest model of every timm family, and a small one of every Hugging Face image classifier; random weights."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitrail.model import View, load

SMALL = {"embed_dim": 48, "num_heads": 3, "depth": 3}
SIZES = ((128, 160), (128, 128))
"""Tried in this order before a model's own size: cheap, and not square, so that rows are not taken for columns."""
LARGER = {"hf/mobilevit": ((128, 192),), "hf/mobilevitv2": ((128, 192),), "timm/inception_v4": ((256, 320),)}
"""Where `SIZES` are too small to tell places. MobileViTs resize maps of odd sides on the way to their patches of 2 x 2,
and what lies in a cell moves half a cell. Inception begins without padding: its outer cells lie further inside."""
JITTER = 0.02
"""Added to every weight, so that gates, biases and heads that begin at zero take part."""

PLAIN = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 96}
NESTED = ("clip", "metaclip_2", "siglip", "siglip2")
"""Families whose vision tower has a configuration of its own."""

TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "beit": ("beit_base_patch16_224", SMALL),
    "byoanet": ("halonet_h1", {}),
    "byobnet": ("test_byobnet", {}),
    "cait": ("cait_xxs24_224", {"depth": 3}),
    "coat": ("coat_tiny", {}),
    "convit": ("convit_tiny", {"depth": 4, "local_up_to_layer": 3}),
    "convmixer": ("convmixer_768_32", {}),
    "convnext": ("test_convnext", {}),
    "cpubone": ("cpubone_nano", {}),
    "crossvit": ("crossvit_tiny_240", {}),
    "csatv2": ("csatv2", {}),
    "cspnet": ("cs3darknet_focus_s", {}),
    "davit": ("davit_tiny", {}),
    "deepseek_vit": ("deepseek_vit_412m", SMALL),
    "deit": ("deit_tiny_patch16_224", {"depth": 3}),
    "densenet": ("densenet121", {}),
    "dla": ("dla46x_c", {}),
    "dpn": ("dpn48b", {}),
    "edgenext": ("edgenext_xx_small", {}),
    "efficientformer": ("efficientformer_l1", {}),
    "efficientformer_v2": ("efficientformerv2_s0", {}),
    "efficientnet": ("test_efficientnet", {}),
    "efficientvim": ("efficientvim_m1", {}),
    "efficientvit_mit": ("efficientvit_b0", {}),
    "efficientvit_msra": ("efficientvit_m0", {}),
    "eva": ("vit_tiny_patch16_dinov3_qkvb", {}),
    "fasternet": ("fasternet_t0", {}),
    "fastvit": ("fastvit_t8", {}),
    "focalnet": ("focalnet_tiny_srf", {}),
    "gcvit": ("gcvit_xxtiny", {}),
    "gemma4_vit": ("gemma4_vit_167m", SMALL),
    "ghostnet": ("ghostnet_050", {}),
    "hardcorenas": ("hardcorenas_b", {}),
    "hgnet": ("hgnetv2_b0", {}),
    "hiera": ("hiera_tiny_224", {}),
    "hieradet_sam2": ("sam2_hiera_tiny", {}),
    "hrnet": ("hrnet_w18_small", {}),
    "iformer": ("iformer_t", {}),
    "inception_next": ("inception_next_atto", {}),
    "inception_resnet_v2": ("inception_resnet_v2", {}),
    "inception_v3": ("inception_v3", {}),
    "inception_v4": ("inception_v4", {}),
    "lcnetv2": ("lcnetv2_small", {}),
    "levit": ("levit_128s", {}),
    "lowformer": ("lowformer_b0", {}),
    "mambaout": ("test_mambaout", {}),
    "maxxvit": ("maxvit_pico_rw_256", {}),
    "metaformer": ("poolformerv2_s12", {}),
    "mlp_mixer": ("gmlp_ti16_224", {}),
    "mobilenetv3": ("mobilenetv3_small_050", {}),
    "mobilenetv5": ("mobilenetv5_base", {}),
    "mobilevit": ("mobilevit_xxs", {}),
    "mvitv2": ("mvitv2_tiny", {}),
    "naflexvit": ("naflexvit_base_patch16_parfac_gap", SMALL),
    "nasnet": ("nasnetalarge", {}),
    "nest": ("nest_tiny", {}),
    "nextvit": ("nextvit_small", {}),
    "nfnet": ("test_nfnet", {}),
    "pit": ("pit_ti_224", {}),
    "pnasnet": ("pnasnet5large", {}),
    "pvt_v2": ("pvt_v2_b0", {}),
    "qwen3_vit": ("qwen3_vit_88m", SMALL),
    "rdnet": ("rdnet_tiny", {}),
    "regnet": ("regnetx_002", {}),
    "repghost": ("repghostnet_050", {}),
    "repvit": ("repvit_m1", {}),
    "res2net": ("res2next50", {}),
    "resnest": ("resnest14d", {}),
    "resnet": ("test_resnet", {}),
    "resnetv2": ("resnetv2_18", {}),
    "rexnet": ("rexnet_100", {}),
    "selecsls": ("selecsls42", {}),
    "senet": ("legacy_seresnet18", {}),
    "sequencer": ("sequencer2d_s", {}),
    "shvit": ("shvit_s1", {}),
    "sknet": ("skresnet18", {}),
    "starnet": ("starnet_s050", {}),
    "swiftformer": ("swiftformer_xs", {}),
    "swin_transformer": ("swin_tiny_patch4_window7_224", {}),
    "swin_transformer_v2": ("swinv2_tiny_window8_256", {}),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", {}),
    "tiny_vit": ("tiny_vit_5m_224", {}),
    "tnt": ("tnt_s_legacy_patch16_224", {"depth": 3}),
    "tresnet": ("tresnet_m", {}),
    "twins": ("twins_svt_small", {}),
    "vgg": ("vgg11", {}),
    "visformer": ("visformer_tiny", {}),
    "vision_transformer": ("test_vit", {}),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", {}),
    "vision_transformer_relpos": ("vit_srelpos_small_patch16_224", SMALL),
    "vision_transformer_sam": (
        "samvit_base_patch16_224",
        {"embed_dim": 48, "num_heads": 3, "depth": 4, "global_attn_indexes": (1, 3)},
    ),
    "vitamin": ("vitamin_small_224", {}),
    "volo": ("volo_d1_224", {}),
    "vovnet": ("ese_vovnet19b_slim_dw", {}),
    "xception": ("legacy_xception", {}),
    "xception_aligned": ("xception41p", {}),
    "xcit": ("xcit_nano_12_p8_224", {"depth": 4}),
}
"""timm's module -> its smallest model (see `smallest`), and what makes that cheaper still."""

HUGGING_FACE: dict[str, dict[str, Any]] = {
    "beit": {},
    "bit": {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "num_groups": 8},
    "clip": {},
    "convnext": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1]},
    "convnextv2": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1]},
    "cvt": {"embed_dim": [16, 32, 48], "num_heads": [1, 2, 3], "depth": [1, 2, 3]},
    "data2vec-vision": {},
    "deit": {},
    "dinat": {},
    "dinov2": {"patch_size": 16},
    "dinov2_with_registers": {"patch_size": 16},
    "donut-swin": {"embed_dim": 24, "depths": [2, 2, 2, 2], "num_heads": [2, 2, 4, 4]},
    "efficientnet": {"width_coefficient": 0.3, "depth_coefficient": 0.3, "hidden_dim": 384},
    "focalnet": {"embed_dim": 24, "depths": [1, 1, 2, 1]},
    "hgnet_v2": {},
    "hiera": {"embed_dim": 24, "depths": [1, 2, 3, 2]},
    "ijepa": {},
    "imagegpt": {},
    "levit": {
        "hidden_sizes": [32, 48, 64],
        "num_attention_heads": [2, 3, 4],
        "depths": [2, 2, 2],
        "key_dim": [8, 8, 8],
    },
    "metaclip_2": {},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.35},
    "mobilevit": {},
    "mobilevitv2": {},
    "perceiver": {
        "num_latents": 16,
        "d_latents": 32,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 2,
        "num_cross_attention_heads": 1,
    },
    "poolformer": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1]},
    "pp_lcnet": {},
    "pvt": {"depths": [1, 2, 2, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]},
    "pvt_v2": {"depths": [1, 2, 2, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]},
    "regnet": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "groups_width": 8},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]},
    "segformer": {"hidden_sizes": [16, 24, 32, 48], "num_attention_heads": [1, 2, 2, 4]},
    "shieldgemma2": {
        "text_config": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "intermediate_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
        },
        "vision_config": {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96},
    },
    "siglip": {},
    "siglip2": {},
    "swiftformer": {},
    "swin": {"embed_dim": 24, "depths": [2, 2, 2, 2], "num_heads": [2, 2, 4, 4]},
    "swinv2": {"embed_dim": 24, "depths": [2, 2, 2, 2], "num_heads": [2, 2, 4, 4]},
    "textnet": {},
    "timm_wrapper": {"architecture": "test_vit"},
    "vit": {},
    "vit_msn": {},
}


@dataclass(frozen=True)
class Family:
    """One line of the sweep."""

    library: str
    name: str
    model: str
    build: Callable[[tuple[int, int] | None], nn.Module]

    @property
    def id(self) -> str:
        return f"{self.library}/{self.name}"

    def view(self) -> View:
        """The view of the model with random weights, at the first size that it takes."""
        refusal: Exception | None = None
        for size in (*LARGER.get(self.id, SIZES), None):
            try:
                torch.manual_seed(0)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    module = self.build(size)
                    jitter(module)
                    view = load(module.eval(), size=size)
                    if calibrate(module, view.size):
                        view = load(module, size=size)  # seen anew
                    return view
            except Exception as error:  # another size may do
                refusal = error
        assert refusal is not None
        raise refusal


def jitter(module: nn.Module) -> None:
    """Move every weight a little, so that nothing is exactly zero or one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=JITTER)


def calibrate(module: nn.Module, size: tuple[int, int]) -> bool:
    """Give every batch norm the statistics of four random pictures; whether there is any.

    A trained model has those of its pictures. With others, values grow a thousandfold from block to block, attention
    saturates and every cell answers to every patch alike, or nothing answers to anything.
    """
    norms = [norm for norm in module.modules() if isinstance(norm, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean
        norm.train()
    with torch.no_grad():
        if norms:
            module(torch.randn(4, 3, *size, generator=torch.Generator().manual_seed(2)))
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
        norm.eval()
    return bool(norms)


def families() -> list[Family]:
    """Every line of the sweep."""
    timm = [Family("timm", name, model, _timm(model, options)) for name, (model, options) in TIMM.items()]
    return timm + [
        Family("hf", name, model, _hugging_face(name, model, HUGGING_FACE[name.partition(":")[0]]))
        for name, model in hugging_face_models().items()
    ]


def hugging_face_models() -> dict[str, str]:
    """Family -> class of every image classifier that Hugging Face knows, each where a family has several."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as KNOWN

    found: dict[str, str] = {}
    for name, models in KNOWN.items():
        for model in (models,) if isinstance(models, str) else models:
            found[name if isinstance(models, str) or model == models[0] else f"{name}:{model}"] = model
    return found


def _timm(model: str, options: dict[str, Any]) -> Callable[[tuple[int, int] | None], nn.Module]:
    def build(size: tuple[int, int] | None) -> nn.Module:
        import timm

        at = {} if size is None else {"img_size": size}
        try:
            return timm.create_model(model, num_classes=7, **options, **at)
        except TypeError:  # convolutional models take any size and no img_size
            return timm.create_model(model, num_classes=7, **options)

    return build


def _hugging_face(name: str, model: str, options: dict[str, Any]) -> Callable[[tuple[int, int] | None], nn.Module]:
    def build(size: tuple[int, int] | None) -> nn.Module:
        import transformers

        side: dict[str, Any] = {} if size is None else {"image_size": size[0] if size[0] == size[1] else size}
        if name in NESTED:
            options_ = {"vision_config": {**PLAIN, **side, **options}}
        else:
            options_ = {**PLAIN, **side, **options} if not options or "patch_size" in options else {**side, **options}
        config = transformers.AutoConfig.for_model(name.partition(":")[0], num_labels=7, **options_)
        return getattr(transformers, model)(config)

    return build


def smallest(name: str) -> str:
    """The model with the fewest weights of one of timm's modules; none of them is given memory."""
    import timm

    def weights(model: str) -> int:
        with torch.device("meta"):
            return sum(weight.numel() for weight in timm.create_model(model).parameters())

    return min(timm.list_models(module=name), key=weights)
