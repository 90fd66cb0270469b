"""Reports of hand-made runs whose numbers are known: every figure, mark and count, in every form."""

import csv
import io
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from scipy import stats

from vitrail import InputError, cli, show
from vitrail.bench import Filter, Store
from vitrail.bench.protocol import Column, Part, Protocol, Sweep
from vitrail.bench.protocol_json import to_dict
from vitrail.bench.report import Cell, Result, Section, gather, html, latex, markdown, plot, terminal, text, write
from vitrail.bench.report import csv as long_form
from vitrail.bench.report.as_latex import escape
from vitrail.bench.report.compare import agreement, holm
from vitrail.bench.report.gathering import _costs
from vitrail.bench.report.plots import panels
from vitrail.bench.stored import CHOSEN, scores
from vitrail.bench.unit import SCHEMA, Unit
from vitrail.metric.statistics import friedman, interval, paired_bootstrap
from vitrail.show.curves import COLOURS
from vitrail.show.sweeps import drawn

INS, DEL, MIOU = "insertion", "deletion", "segmentation"
COUNT = 40
NOISE = np.random.default_rng(0).normal(0, 0.05, (4, COUNT))

NUMBERS = {
    "tis": {INS: 0.7 + NOISE[0], DEL: 0.2 + NOISE[1]},
    "rollout": {INS: 0.4 + NOISE[1], DEL: 0.5 + NOISE[0]},
    "genatt": {INS: 0.7 + NOISE[0] + 0.5 * NOISE[2] - 0.5 * NOISE[2].mean() - 0.001, DEL: 0.3 + NOISE[2]},
    "skipplus(decompx)": {INS: 0.5 + NOISE[3], DEL: 0.15 + NOISE[3]},
}

PART = Part(
    name="deit",
    model="demo",
    data=f"scenes:{COUNT}",
    methods={"TIS": "tis", "Rollout_50%": "rollout", "T&A #1": "genatt"},
    ours=("skipplus(decompx)",),
    columns=(
        Column("Ins", ((INS, 1.0),)),
        Column("Del", ((DEL, 1.0),)),
        Column("Ins - Del", ((INS, 1.0), (DEL, -1.0))),
    ),
    published={
        "TIS": {"Ins": 0.741, "Del": 0.2},
        "Rollout_50%": {"Ins": 0.39, "Del": 0.4},
        "T&A #1": {"Ins": 0.75, "Del": 0.3},
        "Older": {"Ins": 0.5},
    },
    published_for="DeiT-B on 5,000 pictures",
    chunk=16,
)
PROTOCOL = Protocol("tis/table1", "TIS, Table 1: 100% of {methods}", "Englebert et al. 2023", (PART,), "A note_.")


def facts(part: Part, images: int = COUNT) -> dict[str, Any]:
    return {
        "model": "demo",
        "weights": "0123456789abcdef0123",
        "data": part.data,
        "images": images,
        "images hash": "fedcba9876543210",
        "filter": part.filter.given,
        "limit": part.limit,
        "explains": part.explains,
        "chunk": part.chunk,
        "precision": part.precision,
        "compiled": part.compiled,
        "versions": {"vitrail": "0.1", "torch": "2.8"},
    }


def write_unit(store: Store, unit: Unit, images: Sequence[str], columns: Mapping[str, Any], **known: Any) -> None:
    """A part as a run writes it, without maps; ``known`` holds errors, seconds and forward passes."""
    rows = [{"image": image} | {key: values[i] for key, values in known.items()} for i, image in enumerate(images)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    for spec, values in columns.items():
        listed = [None if one is None else np.atleast_1d(one).tolist() for one in values]
        table = table.append_column(spec, pa.array(listed, pa.list_(pa.float64())))
    store.write(unit.name, table)


def write_part(
    store: Store, part: Part, numbers: Mapping[str, Mapping[str, Any]], left_out: Mapping[str, str] | None = None
) -> Store:
    """The run of a part."""
    store = store.within(part.name)
    images = [f"scene {i}" for i in range(COUNT)]
    rows = [{"image": image, "error": None} for image in images]
    rows += [{"image": image, "error": why} for image, why in (left_out or {}).items()]
    store.begin(facts(part, len(rows)))
    store.write(CHOSEN, pa.Table.from_pylist(rows, schema=pa.schema([("image", pa.string()), ("error", pa.string())])))
    for method, columns in numbers.items():
        for number, first in enumerate(range(0, COUNT, part.chunk)):
            rows_of = slice(first, first + part.chunk)
            count = len(images[rows_of])
            write_unit(
                store,
                Unit(method, number, ()),
                images[rows_of],
                {spec: values[rows_of] for spec, values in columns.items()},
                seconds=[9.0 if first + i == 0 else 0.5 for i in range(count)],
                forwards=[1024.0] * count,
                backwards=[512.0] * count,
            )
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    found = Store(str(tmp_path_factory.mktemp("reports") / "run"))
    write_part(found, PART, NUMBERS)
    found.note("protocol.json", json.dumps(to_dict(PROTOCOL)))
    found.note("command.txt", "vitrail bench tis/table1 --out run\nvitrail bench tis/table1 --limit 9\n")
    return found


@pytest.fixture(scope="module")
def result(store: Store) -> Result:
    return Result.of(store)


def cell(section: Section, label: str, column: str) -> Cell:
    (row,) = [row for row in section.rows if row.label == label]
    names = [heading.column.name for heading in section.headings]
    return row.cells[names.index(column)]


# ------------------------------------------------------------------------------------------------------------- numbers


def test_means_and_intervals(result: Result) -> None:
    (section,) = result.sections
    found = cell(section, "TIS", "Ins")
    assert found.value == pytest.approx(NUMBERS["tis"][INS].mean())
    assert (found.low, found.high) == interval(NUMBERS["tis"][INS])
    assert (found.images, found.published) == (COUNT, 0.741)
    assert (section.rows[0].forwards, section.rows[0].backwards) == (1024, 512)
    assert section.rows[0].seconds == 0.5, "the median leaves out the slow start"


def test_differences_are_taken_picture_by_picture(result: Result) -> None:
    gaps = NUMBERS["tis"][INS] - NUMBERS["tis"][DEL]
    found = cell(result.sections[0], "TIS", "Ins - Del")
    assert found.value == pytest.approx(gaps.mean())
    assert (found.low, found.high) == interval(gaps)
    one, other = (cell(result.sections[0], "TIS", name) for name in ("Ins", "Del"))
    assert found.high - found.low < (one.high - one.low) + (other.high - other.low)


def test_weights_and_single_terms(tmp_path: Path) -> None:
    image = f"{MIOU}(level=image)"
    columns = (Column("-Del %", ((DEL, -100.0),)), Column("mIoU", ((MIOU, 1.0),)), Column("mean", ((image, 1.0),)))
    part = replace(PART, columns=columns, methods={"TIS": "tis"}, ours=(), published={})
    confusion = np.random.default_rng(1).integers(1, 50, (COUNT, 4)).astype(float)
    write_part(Store(str(tmp_path)), part, {"tis": {DEL: NUMBERS["tis"][DEL], MIOU: confusion, image: confusion}})
    (section,) = gather(replace(PROTOCOL, parts=(part,)), Store(str(tmp_path))).sections
    scaled, total, mean = section.rows[0].cells
    low, high = interval(NUMBERS["tis"][DEL])
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx(
        (-100 * NUMBERS["tis"][DEL].mean(), -100 * high, -100 * low)
    )
    assert section.headings[0].column.higher_is_better
    row = scores(part.plan(), Store(str(tmp_path)).within("deit")).row(MIOU)
    assert (total.value, total.low, total.high) == (row.value, row.low, row.high)
    assert total.value != pytest.approx(np.nanmean(row.each)), "its total is that of all points together"
    assert mean.value == pytest.approx(np.nanmean(row.each))
    assert [heading.own_total for heading in section.headings] == [False, True, False]


def test_ranks_the_best_and_those_that_are_not_worse(result: Result) -> None:
    (section,) = result.sections
    labels = ["TIS", "Rollout_50%", "T&A #1", "skipplus(decompx)"]
    ins = {label: cell(section, label, "Ins") for label in labels}
    assert [found.rank for found in ins.values()] == [1, 4, 2, 3]
    assert [found.best for found in ins.values()] == [True, False, False, False]
    assert [found.tied for found in ins.values()] == [False, False, True, False]
    gap = paired_bootstrap(NUMBERS["tis"][INS], NUMBERS["genatt"][INS])
    assert gap.low < 0 < gap.high
    assert [cell(section, label, "Del").rank for label in labels] == [2, 4, 3, 1], "less is better"
    assert section.rows[0].rank == pytest.approx((1 + 2 + cell(section, "TIS", "Ins - Del").rank) / 3)
    assert [row.label for row in section.rows] == [*labels[:3], "Older", "skipplus(decompx)"]
    assert [row.ours for row in section.rows] == [False, False, False, False, True]


def test_equal_numbers_share_the_first_rank(tmp_path: Path) -> None:
    part = replace(PART, methods={"A": "tis", "B": "genatt"}, ours=(), columns=PART.columns[:1], published={})
    write_part(Store(str(tmp_path)), part, {method: {INS: NUMBERS["tis"][INS]} for method in ("tis", "genatt")})
    (section,) = gather(replace(PROTOCOL, parts=(part,)), Store(str(tmp_path))).sections
    assert [(row.cells[0].rank, row.cells[0].best, row.cells[0].tied) for row in section.rows] == [(1, True, False)] * 2


def test_holm_counts_the_tests() -> None:
    assert holm([]) == []
    assert holm([0.04]) == [0.04]
    np.testing.assert_allclose(holm([0.01, 0.5, 0.02, 0.6]), [0.04, 1.0, 0.06, 1.0])


def test_order_against_the_papers(result: Result) -> None:
    (section,) = result.sections
    ours = [NUMBERS[method][INS].mean() for method in ("tis", "rollout", "genatt")]
    published = [0.741, 0.39, 0.75]
    found = section.headings[0].agreement
    assert found is not None
    assert found.methods == 3
    assert found.rho == pytest.approx(stats.spearmanr(ours, published).statistic)
    assert found.tau == pytest.approx(stats.kendalltau(ours, published).statistic)
    assert section.headings[2].agreement is None, "the paper has no such column"
    alike = agreement([0.1, 0.2, 0.3], [0.5, 0.5, 0.5])
    assert alike is not None
    assert np.isnan(alike.rho)
    assert agreement([0.1, 0.2, np.nan], [0.5, 0.5, 0.5]) is None


def test_mean_ranks_over_pictures(result: Result) -> None:
    found = result.sections[0].headings[1].standing
    assert found is not None
    expected = friedman(np.stack([NUMBERS[method][DEL] for method in NUMBERS], 1), higher_is_better=False)
    np.testing.assert_allclose([found.ranks[method] for method in NUMBERS], expected.ranks)
    assert (found.p, found.critical_difference, found.images) == (expected.p, expected.critical_difference, COUNT)


# ------------------------------------------------------------------------------------------------- what is not there


def test_left_out_by_the_filter_and_by_errors(tmp_path: Path) -> None:
    part = replace(PART, filter=Filter(correct=True, confidence=0.6), columns=PART.columns[:1])
    numbers = {method: {INS: columns[INS]} for method, columns in NUMBERS.items() if method != "tis"}
    reasons = {
        "a": "left out: the model gets it wrong",
        "b": "left out: the model is sure to 0.41 only, 0.6 is asked for",
        "c": "left out: the model is sure to 5.2e-02 only, 0.6 is asked for",
        "d": "left out: the model still sees it when it is blurred, with 0.3",
        "e/f.jpg": "the picture cannot be read: /data/e/f.jpg is broken",
    }
    store = write_part(Store(str(tmp_path)), part, numbers, reasons)
    for number, first in enumerate(range(0, COUNT, 16)):
        count = min(16, COUNT - first)
        failed = [i == 1 for i in range(count)]
        write_unit(
            store,
            Unit("tis", number, ()),
            [f"scene {first + i}" for i in range(count)],
            {INS: [None if bad else value for bad, value in zip(failed, NUMBERS["tis"][INS][first:])]},
            error=["tis failed: too bright" if bad else None for bad in failed],
        )
    found = gather(replace(PROTOCOL, parts=(part,)), Store(str(tmp_path)))
    (section,) = found.sections
    assert (section.images, section.facts["images"]) == (COUNT, COUNT + 5)
    assert section.left_out == {
        "the model is sure to … only, 0.6 is asked for": 2,
        "the model gets it wrong": 1,
        "the model still sees it when it is blurred": 1,
        "the picture cannot be read: FILE is broken": 1,
    }
    assert section.rows[0].failed == {"tis failed: too bright": 3}
    assert section.rows[1].failed == {}
    assert section.rows[0].cells[0].images == COUNT - 3
    assert np.isnan(section.rows[0].seconds)
    assert not section.missing
    said = markdown(found)
    assert "40 of 45 take part" in said
    assert "Left out by the filter: 5 (2: the model is sure to … only, 0.6 is asked for; 1: " in said
    assert "TIS has no map of 3 (3: tis failed: too bright)" in said
    assert "Ins counts 37 to 40 of them, not the same for all methods" in said
    assert "Filter `correct=true, confidence=0.6`" in said


def test_unfinished_runs_say_what_is_missing(store: Store, tmp_path: Path) -> None:
    shutil.copytree(store.place, tmp_path / "run")
    parts = tmp_path / "run" / "deit" / "parts"
    (tis,), (rollout,) = parts.glob("tis-*"), parts.glob("rollout-*")
    (tis / "00002.parquet").unlink()
    for file in rollout.iterdir():
        file.unlink()
    found = Result.of(str(tmp_path / "run"))
    (section,) = found.sections
    assert section.missing == {"TIS": 1, "Rollout_50%": 3}
    first = cell(section, "TIS", "Ins")
    assert first.images == 32
    assert first.value == pytest.approx(NUMBERS["tis"][INS][:32].mean())
    absent = cell(section, "Rollout_50%", "Ins")
    assert (absent.known, absent.rank, absent.published) == (False, None, 0.39)
    assert "Unfinished: 4 of 12 units of work are missing (TIS 1, Rollout" in markdown(found)
    for form in ("terminal", "markdown", "latex", "csv", "html"):
        assert "nan" not in text(found, form).replace("isNaN", "").lower()


def test_a_metric_that_came_later_is_missing_where_it_is(tmp_path: Path) -> None:
    part = replace(PART, methods={"TIS": "tis"}, ours=(), published={})
    write_part(Store(str(tmp_path)), part, {"tis": {INS: NUMBERS["tis"][INS]}})
    (section,) = gather(replace(PROTOCOL, parts=(part,)), Store(str(tmp_path))).sections
    assert section.missing == {"TIS": 3}
    assert [found.known for found in section.rows[0].cells] == [True, False, False]


def test_parts_that_have_not_begun(tmp_path: Path) -> None:
    store, begun = Store(str(tmp_path)), replace(PART, methods={"TIS": "tis"}, ours=(), published={})
    write_part(store, begun, {"tis": NUMBERS["tis"]})
    later = replace(PART, name="later", filter=Filter(correct=True))
    protocol = replace(PROTOCOL, parts=(begun, later))
    found = gather(protocol, store)
    assert found.sections[1].state == "This part of the run has not begun yet."
    store.within("later").begin(facts(later))
    rows = [{"image": "a", "error": None, "predicted": 1}]
    store.within("later").write("filter/00000", pa.Table.from_pylist(rows))
    found = gather(protocol, store)
    assert found.sections[1].state == "The pictures are still being chosen: 1 of 3 units are looked at."
    for form in ("terminal", "markdown", "latex", "csv", "html"):
        said = text(found, form)
        assert "later" in said
        assert form == "csv" or "1 of 3 units" in " ".join(said.split())


# --------------------------------------------------------------------------------------------------------------- forms


def figures(result: Result) -> tuple[str, str, str, str]:
    found = cell(result.sections[0], "TIS", "Ins")
    return tuple(f"{number:.3f}" for number in (found.value, found.half, found.low, found.high))  # type: ignore[return-value]


def test_markdown(result: Result) -> None:
    value, _, low, high = figures(result)
    said = markdown(result)
    assert f"| TIS | **{value}** ({low} to {high}) · paper 0.741 |" in said
    assert re.search(r"\| T&A #1 \| [\d.]+† \([\d.]+ to [\d.]+\) · paper 0.750 ", said)
    assert r"| Rollout\_50% |" in said
    assert "| skipplus(decompx) (ours) |" in said
    assert "| Older | \N{EN DASH} · paper 0.500 |" in said
    assert "| method | Ins ↑ | Del ↓ | Ins - Del ↑ | mean rank | s / image | forwards | backwards |" in said
    assert "- Ins - Del ↑: `insertion` - `deletion`, picture by picture" in said
    assert "- Older: the paper's alone, not run" in said
    assert "Model `demo`, weights `0123456789abcdef`, fp32; the predicted class is explained" in said
    assert "The paper's numbers are for DeiT-B on 5,000 pictures" in said
    assert re.search(r"- Ins: Spearman's rho 0\.50, Kendall's tau 0\.33 over 3 methods", said)
    assert "Holm's correction" in said
    assert "- `vitrail bench tis/table1 --out run`\n- `vitrail bench tis/table1 --limit 9`" in said
    assert r"- A note\_." in said
    assert "<details>" not in said
    only = replace(PART, columns=PART.columns[2:])
    assert "Older" not in markdown(gather(replace(PROTOCOL, parts=(only,)), Store(result.place))), (
        "nothing to say of it"
    )


def test_wide_tables_fold_intervals_and_break_into_blocks(store: Store, result: Result) -> None:
    columns = tuple(Column(f"c{i}", ((INS if i % 2 else DEL, 1.0),)) for i in range(14))
    wide = replace(PART, columns=columns, methods={"TIS": "tis", "T&A #1": "genatt"}, ours=())
    found = gather(replace(PROTOCOL, parts=(wide,)), store)
    said = markdown(found)
    value, half, low, high = figures(result)
    top, _, folded = said.partition("<details>")
    assert f"**{value}** ±{half}" in top
    assert f"{low} to {high}" not in top
    assert f"{low} to {high} #1" in folded
    lines = [line for line in said.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {20, 16}
    blocks = terminal(found, 80, colour=False)
    assert max(map(len, blocks.splitlines())) <= 80
    assert blocks.count("method ") >= 3, "as many tables as it takes"
    assert all(f"c{i} " in blocks for i in range(14))


def test_terminal(result: Result) -> None:
    value, half, *_ = figures(result)
    said = terminal(result, 120, colour=False)
    assert f"{value}* ±{half}" in said
    assert "paper 0.741" in said
    assert re.search(r"T&A #1\s+[\d.]+†", said)
    assert "\x1b[" not in said
    assert "\x1b[1m" in terminal(result, 120, colour=True)


def test_csv(result: Result) -> None:
    rows = list(csv.DictReader(io.StringIO(long_form(result))))
    assert len(rows) == 5 * 3
    first = rows[0]
    found = cell(result.sections[0], "TIS", "Ins")
    assert float(first["value"]) == found.value
    assert (float(first["low"]), float(first["high"])) == (found.low, found.high)
    assert [first[key] for key in ("part", "method", "spec", "column", "images", "rank", "best", "tied")] == [
        *("deit", "TIS", "tis", "Ins", "40", "1", "true", "false")
    ]
    assert (first["published"], first["seconds"]) == ("0.741", "0.5")
    assert (first["forwards"], first["backwards"]) == ("1024.0", "512.0")
    older = next(row for row in rows if row["method"] == "Older")
    assert (older["value"], older["spec"], older["published"]) == ("", "", "0.5")


def test_latex_is_whole_and_escaped(result: Result) -> None:
    value, half, *_ = figures(result)
    said = latex(result)
    assert rf"TIS & \textbf{{{value}}}\,{{\tiny$\pm${half}}} &" in said
    assert r"Rollout\_50\% & " in said
    assert r"T\&A \#1 & \underline{" in said
    assert r"100\% of \{methods\}" in said
    assert (
        r"\quad{\scriptsize\itshape paper} & {\scriptsize\itshape 0.741} & {\scriptsize\itshape 0.2} &  &  &  &" in said
    )
    assert r"Ins $\uparrow$ & Del $\downarrow$" in said
    body = said[said.index(r"\toprule") : said.index(r"\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + 5 + 4
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {7}, "as many cells as columns in each line"
    plain = re.sub(r"\\[\\{}&%$#_]", "", said)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert not re.search(r"[#%&_~^]", re.sub(r"^% needs.*$|(?<= )&(?= )|\\label\{.*?\}", "", plain, flags=re.M))
    for name in ("table", "tabular", "minipage"):
        assert said.count(rf"\begin{{{name}}}") == said.count(rf"\end{{{name}}}") == 1
    assert said.isascii()


@pytest.mark.parametrize("sign", ["\\", "~", "^", "<", ">", "|", "[", "*", "τ", "λ", "…", "\N{EN DASH}"])
def test_latex_signs(sign: str) -> None:
    found = escape(f"a{sign}b")
    assert found != f"a{sign}b"
    assert found.isascii()
    assert found.startswith("a")
    assert found.endswith("b")


class Reader(HTMLParser):
    """Which tags are open, which places are named, and what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "circle", "path"):
            self.open.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data", "action")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("circle", "path"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_needs_nothing_else(result: Result) -> None:
    value, _, low, high = figures(result)
    said = html(result)
    reader = Reader()
    reader.feed(said)
    assert reader.open == []
    assert reader.links == []
    assert not re.search(r"https?:|@import|url\(|<link|<iframe", said)
    assert "prefers-color-scheme: dark" in said
    assert f"<b>{value}</b><small>{low} to {high}</small>" in said
    assert {"paper 0.741", "Rollout_50%", "T&A #1", "not run"} <= set(reader.words)
    assert said.count("class=best") == 3
    assert 'title="rank 1, 40 pictures"' in said


def test_html_says_words_and_runs_none(store: Store) -> None:
    part = replace(PART, methods={"<script>alert(1)</script>": "tis"}, published={}, ours=())
    said = html(gather(replace(PROTOCOL, parts=(part,), note="a <b> & `c`"), store))
    assert "<script>alert" not in said
    assert "a &lt;b&gt; &amp; &#x27;c&#x27;" in said


# -------------------------------------------------------------------------------------------------------------- sweeps

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


# -------------------------------------------------------------------------------------------------------- command line

Capture = pytest.CaptureFixture[str]


def test_the_verb_prints_and_writes(tmp_path: Path, capsys: Capture) -> None:
    store, part = Store(str(tmp_path / "run")), replace(PART, methods={"TIS": "tis"}, ours=())
    write_part(store, part, {"tis": NUMBERS["tis"]})
    store.note("protocol.json", json.dumps(to_dict(replace(PROTOCOL, parts=(part,)))))
    value = f"{NUMBERS['tis'][INS].mean():.3f}"
    assert cli.main(["report", store.place]) == 0
    assert value in capsys.readouterr().out
    assert cli.main(["report", store.place, "--form", "latex"]) == 0
    assert capsys.readouterr().out.startswith(r"% needs \usepackage{booktabs}")
    assert cli.main(["report", store.place, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.count("report: ") == 4
    assert cli.main(["report", store.place, "--out", str(tmp_path / "one.html"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "one.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert cli.main(["report", store.place, "--out", str(tmp_path / "two"), "--form", "terminal"]) == 0
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["report.txt"]


def test_folders_without_a_run_are_told_in_a_sentence(store: Store, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("x")
    broken = Store(str(tmp_path / "broken"))
    broken.note("protocol.json", "{")
    begun = Store(str(tmp_path / "begun"))
    begun.note("protocol.json", json.dumps(to_dict(PROTOCOL)))
    for arguments, words in (
        ([str(tmp_path / "nowhere")], "holds no run of a protocol"),
        ([str(tmp_path / "file")], "cannot be read"),
        ([str(tmp_path / "broken")], "protocol.json cannot be read"),
        ([str(tmp_path / "begun")], "no part of it has begun"),
        ([store.place, "--out", str(tmp_path / "file")], "is a file; give a folder"),
        ([store.place, "--out", str(tmp_path / "file" / "a.md")], "cannot be written"),
    ):
        assert cli.main(["report", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1, said.err
        assert words in said.err, said.err


def test_runs_from_before_backward_passes_were_counted_are_read() -> None:
    table = pa.table({"seconds": [9.0, 0.5, 0.5], "forwards": [2.0, 2.0, 2.0]})
    old = SimpleNamespace(names=lambda name: table.column_names, read=lambda name, columns: table.select(columns))
    seconds, forwards, backwards = _costs(old, ["unit"])  # type: ignore[arg-type]
    assert (seconds, forwards) == (0.5, 2.0)
    assert np.isnan(backwards)
    assert all(np.isnan(one) for one in _costs(old, []))  # type: ignore[arg-type]
