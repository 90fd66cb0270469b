"""Write docs/agreement.md from the stored maps of the authors' code: python docs/make_agreement.py ASSETS."""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from goldens import FOLDER, IMAGES, agreement, deit_tiny, deit_tiny_wide, inputs  # noqa: E402
from vitrail import explain  # noqa: E402

HEAD = f"""# Agreement with the authors' code

The authors' own code and vitrail on the same DeiT-tiny weights and the same {len(IMAGES)} ImageNet validation images,
for the predicted class, before any upsampling or scaling. *Pearson* is the lowest correlation over the images, *error*
the largest difference, relative to the map's largest absolute value; maps of pixels are summed over the patches first.
The stored maps lie in `tests/golden`; the test `tests/method/test_golden.py` holds the agreement, and
`docs/make_agreement.py` writes this page.

The stored maps are float32, but for those that say otherwise. *Error* compares ours in float64 with them, so it is the
rounding of theirs, and the same on every machine; *in float32* compares ours as users run them, which moves by as much
from one kind of CPU to another.

| spec | code | Pearson | error | in float32 |
|---|---|---|---|---|
"""

MDA = """
## MDA

`mda(compat=authors)` beside its authors' code at its own settings, with cvxopt's default tolerances; only pixels are
sorted stably. The stored maps lie in `tests/golden/injected/mda.npz`, and `tests/method/test_mda_authors.py` holds the
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
        wide = agreement(explain(deit_tiny_wide(assets), inputs(assets).double(), spec).maps.numpy(), maps)
        close = agreement(explain(deit_tiny(assets), inputs(assets), spec).maps.numpy(), maps)
        rows.append(f"| `{spec}` | {source} | {close.pearson:.6f} | {wide.error:.1e} | {close.error:.1e} |\n")
    (HERE / "agreement.md").write_text(HEAD + "".join(rows) + mda(assets), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
