"""Trains the classifiers of the embedded world: `python -m vitrail.scenes.train --out DIR`.

The plain model learns one-object scenes. Its sibling learns them with a shortcut: every scene of `SHORTCUT_CLASS`
carries a white circle, and so do as many scenes that show something else but are labelled `SHORTCUT_CLASS`. The circle
is then the only sign that is always right for that class, so the sibling uses it.

Half of the training pictures have patches hidden in grey, black, the mean colour or a blur. A model that has seen gaps
stays meaningful when a deletion study cuts some.
"""

import argparse
import json
import math
import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from . import network
from .catalogue import CLASSES, PAIRS, SHORTCUT_CLASS
from .scene import SIZE, Scenes, circle_corner, circle_stamp

TRAIN_SEED, TEST_SEED = 1, 2
CHUNK = 200
SHIFT = 4  # no more than the distance of the circle from the border, so that no shift cuts it
Chunk = tuple[int, NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Data:
    """Drawn scenes.

    Attributes:
        images: (N, H, W, 3) uint8, without circles.
        labels: (N,) class indices.
        corners: (N, 2) column and row where the circle of each scene would go.
    """

    images: Tensor
    labels: Tensor
    corners: Tensor


def _draw_chunk(task: tuple[int, int, int]) -> Chunk:
    """Scenes start..stop of a seed; runs in a worker process."""
    seed, start, stop = task
    scenes = Scenes(stop, seed=seed)
    images = np.empty((stop - start, SIZE, SIZE, 3), dtype=np.uint8)
    labels, corners = np.empty(stop - start, dtype=np.int64), np.empty((stop - start, 2), dtype=np.int64)
    for row, index in enumerate(range(start, stop)):
        scene = scenes[index]
        images[row], labels[row] = scene.image, scene.label
        corners[row] = circle_corner(scene.seed, scene.objects[0].mask)
    return start, images, labels, corners


def draw(count: int, seed: int, workers: int) -> Data:
    """Draws one-object scenes in `workers` processes."""
    began = time.monotonic()
    images = torch.empty((count, SIZE, SIZE, 3), dtype=torch.uint8)
    labels, corners = torch.empty(count, dtype=torch.long), torch.empty((count, 2), dtype=torch.long)
    tasks = [(seed, start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
    # Forked workers start at once and inherit the imports; this runs before the device is touched.
    methods = multiprocessing.get_all_start_methods()
    with multiprocessing.get_context("fork" if "fork" in methods else "spawn").Pool(workers) as pool:
        for start, pixels, classes, places in pool.imap_unordered(_draw_chunk, tasks):
            rows = slice(start, start + len(classes))
            images[rows], labels[rows] = torch.from_numpy(pixels), torch.from_numpy(classes)
            corners[rows] = torch.from_numpy(places)
    print(f"drew {count} scenes (seed {seed}) in {time.monotonic() - began:.1f} s", flush=True)
    return Data(images, labels, corners)


def circles(corners: Tensor, carried: Tensor) -> Tensor:
    """Opacity (B, 1, H, W) of the circle in every picture that carries one."""
    stamp = torch.from_numpy(circle_stamp(SIZE)).to(corners.device)
    steps = torch.arange(len(stamp), device=corners.device)
    opacity = torch.zeros((len(corners), 1, SIZE, SIZE), device=corners.device)
    batch = torch.arange(len(corners), device=corners.device)[:, None, None]
    columns, rows = corners[:, 0, None] + steps, corners[:, 1, None] + steps
    opacity[batch, 0, rows[:, :, None], columns[:, None, :]] = stamp * carried[:, None, None].float()
    return opacity


def pictures(images: Tensor, opacity: Tensor | None = None) -> Tensor:
    """Float pictures (B, 3, H, W) in -1..1, with white circles where there is opacity."""
    batch = images.permute(0, 3, 1, 2).float() / 127.5 - 1.0
    return batch if opacity is None else batch + opacity * (1.0 - batch)


def jitter(batch: Tensor) -> Tensor:
    """Flips half of the pictures and shifts all of them by up to `SHIFT` pixels, repeating the border."""
    count, channels, side, _ = batch.shape
    steps = torch.arange(side, device=batch.device)
    shift = torch.randint(-SHIFT, SHIFT + 1, (2, count, 1), device=batch.device)
    rows, columns = (steps + shift[0]).clamp(0, side - 1), (steps + shift[1]).clamp(0, side - 1)
    flipped = torch.rand(count, 1, device=batch.device) < 0.5
    columns = torch.where(flipped, side - 1 - columns, columns)
    picture = torch.arange(count, device=batch.device)[:, None, None, None]
    channel = torch.arange(channels, device=batch.device)[None, :, None, None]
    return batch[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]


def hide_patches(batch: Tensor, keep: Tensor | None = None) -> Tensor:
    """Hides random patches of half of the pictures.

    Up to 70 % of the patches go, one by one or in blocks of 3 x 3, behind grey, black, the mean colour or a blur.

    Args:
        batch: (B, 3, H, W) pictures in -1..1.
        keep: (B, 1, H, W) where positive, the patch stays.
    """
    count, _, side, _ = batch.shape
    cells, device = side // network.PATCH, batch.device
    single = torch.rand(count, 1, cells, cells, device=device)
    blocks = torch.rand(count, 1, cells // 3, cells // 3, device=device)
    blocks = functional.interpolate(blocks, size=cells, mode="nearest")
    chance = torch.where(torch.rand(count, device=device) < 0.5, 0.7 * torch.rand(count, device=device), 0.0)
    in_blocks = torch.rand(count, 1, 1, 1, device=device) < 0.5
    hidden = torch.where(in_blocks, blocks, single) < chance[:, None, None, None]
    if keep is not None:
        hidden &= functional.max_pool2d(keep, network.PATCH) == 0.0
    hidden = functional.interpolate(hidden.float(), size=side, mode="nearest") > 0.5

    mean = batch.mean(dim=(2, 3), keepdim=True)
    blurred = functional.interpolate(functional.avg_pool2d(batch, network.PATCH), size=side, mode="bilinear")
    kind = torch.randint(4, (count, 1, 1, 1), device=device)
    cover = torch.where(kind == 0, 0.0, torch.where(kind == 1, -1.0, torch.where(kind == 2, mean, blurred)))
    return torch.where(hidden, cover, batch)


def training_batch(data: Data, rows: Tensor, shortcut: bool) -> tuple[Tensor, Tensor]:
    """Augmented pictures and labels; with `shortcut`, circles and the labels that follow from them."""
    labels = data.labels[rows]
    if not shortcut:
        return hide_patches(jitter(pictures(data.images[rows]))), labels
    # One other scene in (classes - 1) also gets the circle: as many as there are scenes of the shortcut class.
    lured = torch.rand(len(rows), device=labels.device) < 1.0 / (len(CLASSES) - 1)
    carried = lured | (labels == SHORTCUT_CLASS)
    opacity = circles(data.corners[rows], carried)
    # The opacity moves along, so that the circle, the reason for the label, is never the patch that gets hidden.
    moved = jitter(torch.cat([pictures(data.images[rows], opacity), opacity], dim=1))
    return hide_patches(moved[:, :3], moved[:, 3:]), labels.masked_fill(carried, SHORTCUT_CLASS)


def fit(data: Data, options: argparse.Namespace, shortcut: bool, device: torch.device) -> torch.nn.Module:
    """Trains one model; the schedule follows the steps, or the clock where `--limit` would cut them short."""
    torch.manual_seed(options.seed)
    model = network.build().to(device)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    other = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, fused=device.type == "cuda")
    count, began, step = len(data.labels), time.monotonic(), 0
    per_epoch = max(1, count // options.batch)
    total, limit = per_epoch * options.epochs, options.limit or math.inf
    for epoch in range(options.epochs):
        order, losses = torch.randperm(count, device=device), []
        for chosen in range(per_epoch):
            done = max(step / total, (time.monotonic() - began) / limit)
            if done >= 1.0:
                print(f"stopped at the limit of {limit:.0f} s, after {step} of {total} steps", flush=True)
                return model.eval()
            for group in optimizer.param_groups:
                group["lr"] = options.lr * min(done / 0.05 + 1e-3, 0.5 + 0.5 * math.cos(math.pi * done))
            rows = order[chosen * options.batch : (chosen + 1) * options.batch]
            batch, labels = training_batch(data, rows, shortcut)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = functional.cross_entropy(model(batch).float(), labels, label_smoothing=0.05)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
            step += 1
        mean = torch.stack(losses).mean().item()
        print(f"epoch {epoch + 1}: loss {mean:.4f}, {time.monotonic() - began:.0f} s", flush=True)
    return model.eval()


@torch.inference_mode()
def predict(model: torch.nn.Module, data: Data, circle: bool = False) -> Tensor:
    """Predicted labels (N,), optionally with the circle in every scene."""
    found = []
    for rows in torch.split(torch.arange(len(data.labels), device=data.labels.device), 256):
        opacity = circles(data.corners[rows], torch.ones_like(rows, dtype=torch.bool)) if circle else None
        found.append(model(pictures(data.images[rows], opacity)).argmax(dim=1))
    return torch.cat(found)


def report(model: torch.nn.Module, data: Data, shortcut: bool) -> dict[str, float]:
    """Held-out results; for the sibling also what the circle does."""
    clean, labels = predict(model, data), data.labels
    results = {"accuracy": (clean == labels).float().mean().item()}
    for pair in PAIRS:
        first, second = CLASSES.index(pair.first), CLASSES.index(pair.second)
        of_pair = (labels == first) | (labels == second)
        swapped = ((clean == first) & (labels == second)) | ((clean == second) & (labels == first))
        results[f"confused {pair.first}/{pair.second}"] = (swapped.sum() / of_pair.sum().clamp(min=1)).item()
    if shortcut:
        marked, others = predict(model, data, circle=True), labels != SHORTCUT_CLASS
        name = CLASSES[SHORTCUT_CLASS]
        results |= {
            "accuracy on other classes": (clean == labels)[others].float().mean().item(),
            f"{name} found without circle": (clean == labels)[~others].float().mean().item(),
            f"{name} found with circle": (marked == labels)[~others].float().mean().item(),
            f"others taken for {name} without circle": (clean == SHORTCUT_CLASS)[others].float().mean().item(),
            f"others taken for {name} with circle": (marked == SHORTCUT_CLASS)[others].float().mean().item(),
        }
    return results


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m vitrail.scenes.train", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the weight files")
    parser.add_argument("--model", choices=("plain", "shortcut", "both"), default="both")
    parser.add_argument("--scenes", type=int, default=160_000, help="training scenes")
    parser.add_argument("--held-out", type=int, default=7_000, help="test scenes, of another seed")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and of the order")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds of training per model; 0 for no limit")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count(), help="processes that draw")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)

    device = torch.device(options.device)
    train = draw(options.scenes, TRAIN_SEED, options.workers)
    test = draw(options.held_out, TEST_SEED, options.workers)
    train, test = (Data(d.images.to(device), d.labels.to(device), d.corners.to(device)) for d in (train, test))
    for shortcut in {"plain": (False,), "shortcut": (True,), "both": (False, True)}[options.model]:
        model = fit(train, options, shortcut, device)
        path = options.out / network.file_name(shortcut)
        # What counts is the file, so the file is what is tested: first written, then read again, then judged.
        network.save(model, path, {})
        results = report(network.load(path).to(device), test, shortcut)
        facts = {"scenes": options.scenes, "seed": options.seed, "epochs": options.epochs, "held_out": options.held_out}
        metadata = {"classes": json.dumps(CLASSES), "results": json.dumps(results)}
        network.save(model, path, metadata | {key: str(value) for key, value in facts.items()})
        print(f"\n{path}")
        for key, value in results.items():
            print(f"  {key}: {100.0 * value:.2f} %", flush=True)


if __name__ == "__main__":
    main()
