"""The small ViT of the embedded world: its architecture and its weight files."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer

from ..errors import InputError
from .catalogue import CLASSES
from .scene import SIZE

PATCH = 12
"""Side of a patch in pixels."""


def build() -> torch.nn.Module:
    """The untrained network: a timm ViT of width 128 and depth 6, 1.27 M parameters."""
    network: torch.nn.Module = VisionTransformer(
        img_size=SIZE,
        patch_size=PATCH,
        embed_dim=128,
        depth=6,
        num_heads=4,
        mlp_ratio=4,
        num_classes=len(CLASSES),
        class_token=True,
        global_pool="token",
    )
    return network


def file_name(shortcut: bool) -> str:
    """Name of the weight file."""
    return "scenes_vit_shortcut.safetensors" if shortcut else "scenes_vit.safetensors"


def weights_file(shortcut: bool) -> Path:
    """Where the shipped weights lie."""
    return Path(__file__).parent / "weights" / file_name(shortcut)


def load(path: Path) -> torch.nn.Module:
    """Network with the weights of a file, in eval mode and float32."""
    if not path.is_file():
        raise InputError(
            f"The weights of the scenes classifier are missing: {path} does not exist. "
            f"Reinstall vitrail, or train them with: python -m vitrail.scenes.train --out {path.parent}"
        )
    network = build()
    network.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})
    return network.eval()


def save(network: torch.nn.Module, path: Path, metadata: Mapping[str, str]) -> None:
    """Writes the weights in float16, in one step: a reader sees the old file or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    halves = {name: tensor.detach().cpu().half().contiguous() for name, tensor in network.state_dict().items()}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(halves, draft, dict(metadata))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
