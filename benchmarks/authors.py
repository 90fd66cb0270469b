"""Speed beside the authors' own code, both on the same device in one run.

    python benchmarks/authors.py --checkouts DIR --checkpoint deit_tiny.safetensors [--device cuda] [--batch 16]

DIR holds checkouts, made by whoever runs this, of the repositories named in CODE. They explain one image at a time, on
a forked model; vitrail explains the batch. DeiT-tiny, random images (speed does not depend on them). Every repository
has packages of the same names, so each runs in a process of its own.
"""

import argparse
import importlib
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

# method: (checkout, folder on the path, its ViT, where its explainer lives, how it is called on one image)
CODE = {
    "bt_h": ("transformerinterp", "ViT", "ViT_new", "ViT_explanation_generator", "generate_ours"),
    "t_attn": ("Transition_Attention_Maps", ".", "ViT_new", "interpret_methods", "transition_attention_maps"),
    "t_attr": ("Transformer-Explainability", ".", "ViT_LRP", "ViT_explanation_generator", "generate_LRP"),
}
EXPLAINERS = {"bt_h": "Baselines", "t_attn": "InterpretTransformer", "t_attr": "LRP"}
OPTIONS = {"bt_h": {"start_layer": 4}, "t_attn": {}, "t_attr": {"method": "transformer_attribution"}}


def seconds(call, repeats: int, device: str) -> float:
    """Median wall time, after two warm-up calls."""
    times = []
    for i in range(repeats + 2):
        if device != "cpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        if i >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def authors(method: str, checkouts: Path, weights: dict[str, Tensor], images: Tensor, repeats: int) -> float:
    """Seconds an image of the authors' code."""
    checkout, folder, vit, explainer, function = CODE[method]
    sys.path.insert(0, str(checkouts / checkout / folder))
    norm = {} if method == "t_attr" else {"norm_layer": partial(nn.LayerNorm, eps=1e-6)}
    model = importlib.import_module(f"baselines.ViT.{vit}").VisionTransformer(
        patch_size=16, embed_dim=192, depth=12, num_heads=3, mlp_ratio=4, qkv_bias=True, **norm
    )
    model.load_state_dict(weights)
    model.eval().to(images.device)
    made = getattr(importlib.import_module(f"baselines.ViT.{explainer}"), EXPLAINERS[method])(model)
    call = partial(getattr(made, function), images[:1].clone(), **OPTIONS[method])
    return seconds(call, repeats, images.device.type)


def ours(method: str, checkpoint: Path, images: Tensor, repeats: int, precision: str) -> float:
    """Seconds an image of vitrail, a batch at a time."""
    import vitrail

    view = vitrail.load("timm/deit_tiny_patch16_224", checkpoint, device=images.device)
    call = partial(vitrail.explain, view, images, method, batch=len(images), precision=precision)
    return seconds(call, repeats, images.device.type) / len(images)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--checkouts", type=Path, required=True)
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--method", choices=CODE)
    given = options.parse_args()
    if given.method is None:
        print(
            f"DeiT-tiny, {given.device}, vitrail at batch {given.batch}; seconds an image, medians of {given.repeats}"
        )
        print(f"{'method':10}{'authors':>10}{'fp32':>10}{'ratio':>8}{'bf16':>10}{'ratio':>8}", flush=True)
        for method in CODE:
            subprocess.run([sys.executable, *sys.argv, "--method", method], check=False)
        return
    from safetensors.torch import load_file

    images = torch.randn(given.batch, 3, 224, 224, generator=torch.Generator().manual_seed(0)).to(given.device)
    fast = {p: ours(given.method, given.checkpoint, images, given.repeats, p) for p in ("fp32", "bf16")}
    weights = {key: value.float() for key, value in load_file(given.checkpoint).items()}
    slow = authors(given.method, given.checkouts, weights, images, given.repeats)
    columns = "".join(f"{t:10.4f}{slow / t:7.0f}x" for t in fast.values())
    print(f"{given.method:10}{slow:10.4f}{columns}", flush=True)


if __name__ == "__main__":
    main()
