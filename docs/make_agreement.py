"""Write docs/agreement.md from the stored maps of the authors' code: python docs/make_agreement.py ASSETS."""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from helpers.goldens import FOLDER, IMAGES, agreement, deit_tiny, inputs  # noqa: E402
from vitrail import explain  # noqa: E402

HEAD = f"""# Agreement with the authors' code

The authors' own code and vitrail on the same DeiT-tiny weights and the same {len(IMAGES)} ImageNet validation images,
for the predicted class, before any upsampling or scaling. *Pearson* is the lowest correlation over the images, *error*
the largest difference, relative to the map's largest absolute value; maps of pixels are summed over the patches first.
The stored maps lie in `tests/golden`; the test `tests/method/test_golden.py` holds the agreement, and
`docs/make_agreement.py` writes this page.

Both sides are float32, in this table on one CPU. On another kind (AMD Zen 5) ours are rounded in another way: 43 of the
54 agree with the stored maps to 3e-5 there, and nine to 1.2e-4. From float64 the stored float32 maps and ours are about
equally far. `gradcam++` and `xgradcam` divide by sums that nearly cancel, so ours read their features in float64: their
error is the rounding of the stored maps.

| spec | code | Pearson | error |
|---|---|---|---|
"""

MDA = """
## MDA

`mda(compat=authors)` beside its authors' code at its own settings, with cvxopt's default tolerances; only pixels are
sorted stably. The stored maps lie in `tests/golden/injected/mda.npz`, and `tests/method/mda/test_authors.py` holds the
agreement. *Order* tells on how many images all patches come in the same order; the largest errors are of the sparse
and of the dense map.

| patches | order | sparse | dense |
|---|---|---|---|
"""


def mda(assets: Path) -> str:
    """Compare the stored orders and maps of MDA, which has images of its own, with today's."""
    with np.load(FOLDER / "injected" / "mda.npz") as file:
        stored = dict(file)
    rows = []
    for patches in (49, 196):
        names = sorted(key.split("/")[1] for key in stored if key.startswith(f"{patches}/") and key.endswith("/order"))
        same, errors = 0, []
        for name in names:
            image = assets / "data/imagenet_val/images" / name
            found = explain(deit_tiny(assets), image, f"mda(cells={round(patches**0.5)}, compat=authors)").extras
            same += found["order"][0].tolist() == stored[f"{patches}/{name}/order"].tolist()
            pairs = [(found[what].numpy(), stored[f"{patches}/{name}/{what}"]) for what in ("sparse", "dense")]
            errors.append([agreement(ours, theirs.reshape(ours.shape)).error for ours, theirs in pairs])
        sparse, dense = np.max(errors, axis=0)
        rows.append(f"| {patches} | {same} of {len(names)} | {sparse:.1e} | {dense:.1e} |\n")
    return MDA + "".join(rows)


def main(assets: Path) -> None:
    """Compare every golden file with today's maps."""
    rows = []
    for path in sorted(FOLDER.glob("*.npz")):
        with np.load(path) as stored:
            maps, spec, source = stored["maps"], str(stored["spec"]), str(stored["source"])
        close = agreement(explain(deit_tiny(assets), inputs(assets), spec).maps.numpy(), maps)
        rows.append(f"| `{spec}` | {source} | {close.pearson:.6f} | {close.error:.1e} |\n")
    (HERE / "agreement.md").write_text(HEAD + "".join(rows) + mda(assets), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
