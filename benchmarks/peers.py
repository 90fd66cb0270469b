"""Speed beside the peers: both sides in one run, on the same model and images, equal results checked first.

    python benchmarks/peers.py [--device cpu|cuda] [--batch 8] [--repeats 9]

Captum's Saliency, InputXGradient and IntegratedGradients, and pytorch-grad-cam's GradCAM, against vitrail's, on
ViT-tiny/16 at 224 pixels with random weights (speed does not depend on them).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch
from torch import Tensor

from vitrail.method import parse
from vitrail.model import load

STEPS = 16


def median_seconds(calls: list[Callable[[], Tensor]], repeats: int, device: str) -> list[float]:
    """Median wall time of each call. They take turns, so that a busy moment of the machine hits all alike."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, taken in zip(calls, times):
            if device != "cpu":
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            if device != "cpu":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def peers(model: torch.nn.Module, images: Tensor, targets: list[int]) -> dict[str, Callable[[], Tensor]]:
    """What each peer computes, summed over channels, by the spec of ours that must equal it."""
    found: dict[str, Callable[[], Tensor]] = {}
    try:
        from captum.attr import InputXGradient, IntegratedGradients, Saliency

        ig = IntegratedGradients(model)
        found["saliency"] = lambda: Saliency(model).attribute(images, targets).sum(1)
        found["ixg"] = lambda: InputXGradient(model).attribute(images, targets).sum(1).detach()
        found[f"ig(steps={STEPS})"] = lambda: ig.attribute(images, target=targets, n_steps=STEPS).sum(1).detach()
    except ImportError:
        print("captum is not installed: its rows are left out")
    try:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        def reshape(tokens: Tensor) -> Tensor:
            return tokens[:, 1:].transpose(1, 2).unflatten(2, (14, 14))

        cam = GradCAM(model=model, target_layers=[model.blocks[-1].norm1], reshape_transform=reshape)
        wanted = [ClassifierOutputTarget(target) for target in targets]
        found["gradcam"] = lambda: torch.as_tensor(cam(input_tensor=images, targets=wanted))
    except ImportError:
        print("pytorch-grad-cam is not installed: its row is left out")
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cpu")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--repeats", type=int, default=9)
    given = options.parse_args()
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval().to(given.device)
    images = torch.randn(given.batch, 3, 224, 224, device=given.device)
    targets = [i % 1000 for i in range(given.batch)]
    view = load(model)
    print(f"ViT-tiny/16, {given.batch} images, {given.device}, torch {torch.__version__}, medians of {given.repeats}")
    print(f"{'method':14}{'peer ms/image':>15}{'ours ms/image':>15}{'ratio':>8}")
    for spec, peer in peers(model, images, targets).items():
        method = parse(spec)

        def ours(method=method) -> Tensor:
            return method.attribute(view, images, targets)

        theirs, mine = peer().float(), ours()
        if theirs.shape == mine.shape:  # Grad-CAM's peer scales and enlarges its maps; the tests compare those
            error = float((theirs - mine).norm() / theirs.norm())
            assert error < 1e-3, f"{spec} and its peer disagree: {error:.1e}"
        slow, fast = (t / given.batch * 1e3 for t in median_seconds([peer, ours], given.repeats, given.device))
        print(f"{spec:14}{slow:15.2f}{fast:15.2f}{slow / fast:8.2f}", flush=True)


if __name__ == "__main__":
    main()
