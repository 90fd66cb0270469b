"""Write docs/metric_agreement.md from the authors' stored numbers: python docs/make_metric_agreement.py ASSETS.

Everything is measured again, at every step: about a quarter of an hour on one core.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from helpers.metric_goldens import Golden, names  # noqa: E402

HEAD = """# Agreement of the metrics with the authors' code

The authors' own code and vitrail on the same DeiT-tiny weights, the same images (ImageNet validation; pets with their
masks where segmentation is judged) and the same signed maps without ties: DecompX of the class explained, enlarged
bilinearly with a little noise, or at its own grid where the code enlarges maps itself. *Score* is the largest
difference of a number, *curve* that of any point of a curve, both absolute. The stored numbers lie in
`tests/golden/metrics`; the test `tests/metric/test_authors.py` holds the agreement to 1e-4 (`-m slow` with all 224
steps), and `docs/make_metric_agreement.py` writes this page.

| code | spec | images | score | curve |
|---|---|---|---|---|
"""


def main(assets: Path) -> None:
    """Compare every stored number with today's."""
    rows, sources = [], []
    for name in names():
        golden = Golden(name, assets)
        sources.append(f"- *{name}*: {golden.source}\n")
        for i, spec in enumerate(golden.specs):
            found = golden.agreement(i)
            curve = "" if found.curve is None else f"{found.curve:.1e}"
            rows.append(f"| {name} | `{spec}` | {golden.images} | {found.value:.1e} | {curve} |\n")
    page = HEAD + "".join(rows) + "\n## The code\n\n" + "".join(sources)
    (HERE / "metric_agreement.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
