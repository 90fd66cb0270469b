"""Draw the pictures of README and docs again: python docs/make_images.py [FAMILY | curves ...]."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail import evaluate, explain, load, scenes
from vitrail.explanation import sheet_of
from vitrail.metric import Case, parse

HERE = Path(__file__).parent / "images"
PART_COLOURS = [(230, 85, 70), (90, 170, 90), (80, 120, 215), (235, 190, 60), (170, 100, 190), (80, 190, 195)]


def save(picture: Image.Image, name: str) -> None:
    """Write a small PNG: 256 colours are enough for a page, dithered so that no band appears that is not in the map."""
    HERE.mkdir(exist_ok=True)
    palette = picture.quantize(256, Image.Quantize.MAXCOVERAGE)  # PIL dithers only towards a palette that is given
    picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(HERE / name, optimize=True)


FAMILIES = {
    "gradient": ("saliency", "ixg", "ig(steps=24)", "smoothgrad", "fullgrad", "plus(fullgrad_plus)"),
    "cam": ("gradcam", "gradcam++", "xgradcam", "hirescam", "layercam", "eigencam", "attcam(relu=True)"),
    "attention": ("raw_attention", "rollout", "grad_rollout", "genatt", "t_attn", "bt_h", "legrad", "inflow"),
    "relevance": ("t_attr", "partial_lrp", "lrp", "lrp(to=tokens)"),
    "decomposition": ("decompx", "decompx(bias=absdot)", "attin", "n_res", "globenc", "alti"),
    "perturbation": ("rise(masks=1000)", "occlusion", "pami", "lime", "kernel_shap", "shapley(samples=2)", "hsic"),
    "tis": ("tis", "vit_cx", "atman", "less_is_more"),
    "mda": ("mda", "mda(gamma=0.5)", "mda(gamma=1.0)", "mda(tau=1)", "mda(tau=0)"),
    "learned": ("aha", "aha(refine=3)", "aha(refine=5)"),
    "composition": ("plus(decompx)", "skipplus(decompx)", "cat", "attcat", "gradsam", "var(genatt)"),
}


def sheet(names: tuple[str, ...], specs: tuple[str, ...]) -> Image.Image:
    """Sample scenes by methods."""
    view = load("demo")
    chosen = [(name, scene) for name, scene in scenes.samples() if name in names]
    pictures = [scene.pil for _, scene in chosen]
    for picture, (name, _) in zip(pictures, chosen):
        picture.filename = name
    return sheet_of([explain(view, pictures, spec) for spec in specs], pictures)


def classes() -> Image.Image:
    """Every class of the scenes, its twin below it, and the parts of both."""
    side, pairs = scenes.SIZE + 6, scenes.PAIRS
    page = Image.new("RGB", (len(pairs) * side, 4 * side), "white")
    for column, pair in enumerate(pairs):
        for row, name in enumerate((pair.first, pair.second)):
            scene = scenes.make(101 + column, classes=[name])
            parts = np.full((*scene.image.shape[:2], 3), 245, np.uint8)
            for colour, mask in zip(PART_COLOURS, scene.objects[0].parts.values()):
                parts[mask] = colour
            page.paste(scene.pil, (column * side, row * side))
            page.paste(Image.fromarray(parts), (column * side, (row + 2) * side))
    return page


CURVES = ("skipplus(decompx)", "genatt", "gradcam", "rise(masks=500)", "random")


def curves() -> None:
    """Mean deletion curves of some methods, and one picture's curve with its parts."""
    view = load("demo")
    pictures = [scenes.make(seed).pil for seed in range(12)]
    scores = evaluate(view, pictures, CURVES, "deletion(step=288)")
    save(scores.draw("deletion"), "deletion_curves.png")
    scene = scenes.make(7, classes=["whale"])
    images = view.preprocess.batch([scene.pil])
    found = explain(view, images, "skipplus(decompx)")
    case = Case(view, images, found.maps)
    curve = parse("deletion(step=288)").curve(case)
    drawn = curve.draw(
        title="deletion, skipplus(decompx)", at=(0, 0.05, 0.1, 0.25, 0.5), restore=view.preprocess.restore
    )
    save(drawn, "mas_curve.png")


SHOWN = ("rabbit", "whale", "helicopter", "church")
FIRST = ("gradcam", "ig(steps=24)", "rollout", "genatt", "skipplus(decompx)", "aha")


def make(name: str) -> None:
    """Make one of the pictures."""
    if name == "curves":
        curves()
    elif name == "scenes":
        save(classes(), "scenes.png")
    elif name == "demo":
        save(sheet(SHOWN, FIRST), "demo.png")
    else:
        save(sheet(("whale", "rabbit-and-dumper"), FAMILIES[name]), f"{name}.png")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ("demo", *FAMILIES, "scenes", "curves"):
        make(wanted)
