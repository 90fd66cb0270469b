"""Reports with a sweep: drawn in its places."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.reported import COUNT, DEL, INS, NOISE, PART, PROTOCOL, Reader, write_part
from vitrail import InputError, show
from vitrail.bench import Store
from vitrail.bench.protocol import Sweep
from vitrail.bench.report import Result, gather, plot, write
from vitrail.bench.report.plots import panels
from vitrail.show.curves import COLOURS
from vitrail.show.sweeps import drawn

SWEPT = replace(
    PART,
    name="fig 5",
    methods={
        f"{line} {keep}": f"tis(keep={keep}, masks={n})"
        for n, line in ((8, "A"), (16, "B"))
        for keep in (0.2, 0.9, 0.5)
    },
    ours=("random",),
    columns=PART.columns[:2],
    published={"A 0.5": {"Ins": 0.8}},
    sweep=Sweep("keep", {f"{line} {keep}": (line, keep) for line in "AB" for keep in (0.2, 0.9, 0.5)}),
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Result:
    place = str(tmp_path_factory.mktemp("reports") / "swept")
    specs = SWEPT.plan().methods
    numbers = {
        spec: {metric: np.full(COUNT, (i + 1) / 10) + NOISE[0] for metric in (INS, DEL)} for i, spec in enumerate(specs)
    }
    write_part(Store(place), SWEPT, numbers)
    return gather(replace(PROTOCOL, parts=(SWEPT,)), Store(place))


def test_a_sweep_is_drawn_in_its_places(swept: Result) -> None:
    (section,) = swept.sections
    found = panels(section)
    assert [panel.title for panel in found] == ["Ins ↑", "Del ↓"]
    first = found[0].tracks[0]
    assert first.name == "A"
    assert first.places.tolist() == [0.2, 0.5, 0.9], "in order, whatever the protocol's"
    np.testing.assert_allclose(first.values, np.array([0.1, 0.3, 0.2]) + NOISE[0].mean())
    np.testing.assert_array_equal(first.published, [np.nan, 0.8, np.nan])
    assert set(found[0].levels) == {"random"}
    figure = drawn(found, across="keep")
    axes = figure.axes[0]
    assert len(figure.axes) == 2
    assert axes.get_xscale() == "linear"
    assert axes.get_xlabel() == "keep"
    hollow = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert len(hollow) == 1
    assert [label.get_text() for label in figure.legends[0].get_texts()] == ["A", "B", "random", "the paper's"]
    picture = np.asarray(Image.open(io.BytesIO(plot(section))).convert("RGB"))
    assert (picture[:4] == 255).all(), "nothing runs over the edge"
    for colour in COLOURS[:2]:
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (picture == wanted).all(-1).sum() > 50
    assert plot(section, "svg") == plot(section, "svg"), "the same run gives the same file"
    few = replace(SWEPT, methods={}, published={})
    (rest,) = gather(replace(PROTOCOL, parts=(few,)), Store(swept.place)).sections
    assert rest.sweep is None, "no method that was asked for has a place on the axis"


def test_places_far_apart_get_a_logarithmic_axis() -> None:
    values = np.array([0.1, 0.2, 0.3])
    for places, scale in (([1, 32, 1024], "log"), ([0, 32, 1024], "linear"), ([1, 10, 20], "linear")):
        track = show.Track("a", np.array(places, float), values, values, values, values * np.nan)
        figure = drawn([show.Panel("p", [track])], across="x")
        assert figure.axes[0].get_xscale() == scale
    with pytest.raises(InputError, match="no line to draw"):
        drawn([show.Panel("p", [])], across="x")


def test_reports_with_sweeps_show_them(swept: Result, tmp_path: Path) -> None:
    paths = write(swept, tmp_path / "out")
    names = {path.name for path in paths}
    assert names == {"report.md", "report.tex", "report.csv", "report.html", "report-fig-5.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert "(report-fig-5.png)" in (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert "{report-fig-5.png}" in (tmp_path / "out/report.tex").read_text(encoding="utf-8")
    reader = Reader()
    reader.feed((tmp_path / "out/report.html").read_text(encoding="utf-8"))
    assert len(reader.links) == 1
    assert reader.links[0].startswith("data:image/svg+xml;base64,")
