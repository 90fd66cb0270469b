"""Write docs/agreement.md from the stored maps of the authors' code: python docs/make_agreement.py ASSETS."""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from goldens import FOLDER, IMAGES, agreement, deit_tiny, inputs  # noqa: E402
from vitrail import explain  # noqa: E402

HEAD = f"""# Agreement with the authors' code

The authors' own code and vitrail on the same DeiT-tiny weights and the same {len(IMAGES)} ImageNet validation images,
for the predicted class, before any upsampling or scaling. *Pearson* is the lowest correlation over the images, *error*
the largest difference, relative to the map's largest absolute value; maps of pixels are summed over the patches first.
The stored maps lie in `tests/golden`; the test `tests/method/test_golden.py` holds the agreement, and
`docs/make_agreement.py` writes this page.

| spec | code | Pearson | error |
|---|---|---|---|
"""


def main(assets: Path) -> None:
    """Compare every golden file with today's maps."""
    rows = []
    for path in sorted(FOLDER.glob("*.npz")):
        with np.load(path) as stored:
            maps, spec, source = stored["maps"], str(stored["spec"]), str(stored["source"])
        close = agreement(explain(deit_tiny(assets), inputs(assets), spec).maps.numpy(), maps)
        rows.append(f"| `{spec}` | {source} | {close.pearson:.6f} | {close.error:.1e} |\n")
    (HERE / "agreement.md").write_text(HEAD + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
