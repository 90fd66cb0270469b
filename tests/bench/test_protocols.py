"""Protocols: every file that comes with vitrail, files of one's own, and the sentences for those that are wrong."""

import json
import re
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest
from torch import Tensor

from vitrail import InputError, cli
from vitrail.bench import Filter, run
from vitrail.bench.protocol import Column, Part, Protocol
from vitrail.bench.protocol_files import FILTER, protocols, read_protocol, with_explainer
from vitrail.bench.protocol_json import from_dict, to_dict
from vitrail.bench.tables import narrowed
from vitrail.cli.train import Train
from vitrail.data import dataset
from vitrail.method import METHODS, Batch, Method, parse, register
from vitrail.model import View
from vitrail.scenes.train import TEST_SEED, TRAIN_SEED

PAGE = Path(__file__).parents[2] / "docs/protocols.md"
NAMES = protocols()

WHOLE = """
title: Two methods
model: demo
data: scenes:28
filter: {correct: true, confidence: 0.5}
methods:
  IG: ig(steps=4)
  GA: genatt
ours: [random]
columns:
  Ins: insertion
  Del: deletion
  Ins - Del: {difference: [Ins, Del]}
published:
  for: another model
  columns: [Ins, Del]
  IG: [0.5, 0.25]
"""


@cache
def read(name: str) -> Protocol:
    return read_protocol(name)


def own(tmp_path: Path, text: str = WHOLE) -> Protocol:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return read_protocol(file)


# ---------------------------------------------------------------------------------------------------------- as shipped


def test_the_papers_are_there() -> None:
    papers = {"mda": 15, "skipplus": 3, "aha": 6, "tis": 7, "var": 3}
    assert {name: len(protocols(f"{name}/*")) for name in papers} == papers
    assert "scenes" in NAMES
    assert protocols("mda/table*")[-1] == "mda/table13", "numbers are sorted as numbers"


@pytest.mark.parametrize("name", NAMES)
def test_a_protocol_can_be_run_and_kept(name: str) -> None:
    found = read(name)
    assert found.name == name
    assert found.title
    assert found.paper
    assert from_dict(json.loads(json.dumps(to_dict(found)))) == found
    for part in found.parts:
        plan = part.plan()
        assert "random" in plan.methods, "every table has a floor"
        assert set(part.labels) == set(plan.methods)
        assert {spec for column in part.columns for spec, _ in column.terms} == set(plan.metrics)


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers_are_of_rows_and_columns_and_fit_together(name: str) -> None:
    """A slip of the pen would break the tables' own differences."""
    for part in read(name).parts:
        columns = {column.name for column in part.columns}
        assert set(part.published) <= {*part.methods, *part.later}
        assert bool(part.published) == bool(part.published_for)
        for row in part.published.values():
            assert row
            assert set(row) <= columns
        digits = max((decimals(number) for row in part.published.values() for number in row.values()), default=0)
        for whole, first, second in differences(part):
            for label, row in part.published.items():
                if {whole, first, second} <= set(row):
                    rest = abs(row[first] - row[second] - row[whole])
                    assert rest < 1.6 * 10**-digits, f"{name}, {part.name}: {label}, {whole}"


def differences(part: Part) -> list[tuple[str, str, str]]:
    """Columns that are the difference of two others."""
    weighed = {column.name: dict(column.terms) for column in part.columns}

    def is_difference(whole: str, first: str, second: str) -> bool:
        turned = {spec: -weight for spec, weight in weighed[second].items()}
        return weighed[whole] == weighed[first] | turned and bool(turned)

    return [three for three in permutations(weighed, 3) if is_difference(*three)]


def decimals(number: float) -> int:
    return len(f"{number}".partition(".")[2])


def test_all_difference_columns_are_looked_at() -> None:
    assert len(differences(read("mda/table5").part("main"))) == 2
    assert len(differences(read("tis/table1").part("main"))) == 4
    assert len(differences(read("aha/table1").part("label"))) == 2


def test_some_numbers_by_hand() -> None:
    assert read("mda/table5").part("main").published["ViT-CX"]["Del"] == 0.155
    assert read("tis/table1").part("main").published["IntegratedGrad"]["Ins Blur"] == 0.69
    assert read("tis/table3").part("deit").published["TIS"] == {"Pointing game": 0.825}
    assert read("aha/table3").part("predicted").published["GradCAM"]["PIC"] == 5.4453
    var = read("var/table1").part("vit-part-quad").published
    assert var["T-attn + VAR"] == {"RA": 0.47, "IoU": 0.29, "F1": 0.4}
    assert var["T-attn"]["IoU"] == pytest.approx(0.29 / 4.21, abs=5e-4)


def test_nobody_learned_from_the_scenes_that_aha_is_judged_by() -> None:
    judged = {item.source.seed[0] for item in dataset(read("aha/scenes").parts[0].data).items}
    explainers = {item.source.seed[0] for spec in Train().data for item in dataset(spec).items}
    assert judged.isdisjoint({*explainers, TRAIN_SEED, TEST_SEED})


def test_a_mean_column_counts_each_fill_alike() -> None:
    column = read("aha/table1").part("predicted").columns[2]
    assert column.name == "Ins. - Del."
    assert sorted(weight for _, weight in column.terms) == pytest.approx([-1 / 3] * 3 + [1 / 3] * 3)
    assert column.higher_is_better
    assert not read("aha/table1").part("predicted").columns[0].higher_is_better


def test_a_sweep_knows_where_its_methods_are() -> None:
    part = read("mda/table11").part("main")
    assert part.sweep is not None
    assert part.sweep.axis == "gamma"
    assert part.sweep.at["MDA, gamma=0.5"] == ("MDA", 0.5)
    assert part.methods["MDA, gamma=0.5"] == "mda(gamma=0.5)"
    assert len(read("skipplus/figure7").parts[0].methods) == 5 * 12


# ------------------------------------------------------------------------------------------------ methods still to come

COMING = """
title: A method to come
model: demo
data: scenes:28
methods: {GA: genatt}
later: {New: nova(steps=3)}
sweep: {axis: steps, values: [1, 2], later: {Line: "nova(steps={})"}}
columns: [sparseness]
published: {for: a paper, GA: [0.5], New: [0.7], "Line, steps=1": [0.6]}
"""


def test_a_method_that_is_not_there_yet_waits(tmp_path: Path) -> None:
    part = own(tmp_path, COMING).parts[0]
    assert part.methods == {"GA": "genatt"}
    assert part.later["New"] == "nova(steps=3)"
    assert part.sweep is None
    assert part.published["New"] == {"sparseness": 0.7}
    assert part.plan().methods == ("genatt",)


def test_it_joins_as_soon_as_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in METHODS:
        monkeypatch.setitem(METHODS, name, METHODS[name])  # so that what is registered here is forgotten again

    @register("nova", paper="none", cost="none", needs=())
    @dataclass(frozen=True)
    class Nova(Method):
        """Nothing."""

        steps: int = 1

        def maps(self, view: View, batch: Batch) -> Tensor:
            raise NotImplementedError

    try:
        part = own(tmp_path, COMING).parts[0]
        assert part.methods == {
            "GA": "genatt",
            "New": "nova(steps=3)",
            "Line, steps=1": "nova",
            "Line, steps=2": "nova(steps=2)",
        }
        assert not part.later
        assert part.sweep is not None
        assert part.sweep.at == {"Line, steps=1": ("Line", 1.0), "Line, steps=2": ("Line", 2.0)}
        with pytest.raises(InputError, match="nova has no parameter called 'stops'; did you mean steps"):
            own(tmp_path, COMING.replace("nova(steps=3)", "nova(stops=3)"))
    finally:
        del METHODS["nova"]


# ----------------------------------------------------------------------------------------------------- one's own files


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    found = own(tmp_path)
    assert found.name == "mine"
    (part,) = found.parts
    assert part.name == "main"
    assert part.labels == {"ig(steps=4)": "IG", "genatt": "GA", "random": "random"}
    assert part.columns[2] == Column("Ins - Del", (("insertion", 1.0), ("deletion", -1.0)))
    assert part.filter.given == {"correct": True, "confidence": 0.5}
    assert part.published == {"IG": {"Ins": 0.5, "Del": 0.25}}
    assert from_dict(to_dict(found)) == found


def test_parts_say_what_is_different_and_null_takes_it_back(tmp_path: Path) -> None:
    text = (
        WHOLE + "limit: 5\nsize: [96, 96]\nparts: {one: {}, two: {model: demo/shortcut, explains: label, limit: null}}"
    )
    one, two = own(tmp_path, text).parts
    assert replace(one, name="main", limit=None, size=None) == own(tmp_path).parts[0]
    assert (one.limit, one.size, one.plan().size) == (5, (96, 96), (96, 96))
    assert (two.model, two.explains, two.limit) == ("demo/shortcut", "label", None)


def test_every_condition_of_a_filter_can_be_asked_for() -> None:
    assert set(FILTER) == {field.name for field in fields(Filter)}


def test_lists_and_presets_will_do(tmp_path: Path) -> None:
    part = own(
        tmp_path, "title: x\nmodel: demo\ndata: scenes\nmethods: [ig, genatt]\ncolumns: [rise, sparseness]"
    ).parts[0]
    assert list(part.methods) == ["ig", "genatt"]
    assert [column.name for column in part.columns] == ["insertion", "deletion", "sparseness"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("model: demo", "modle: demo", r"mine.yaml: there is no key called 'modle'; did you mean 'model'\?"),
        ("correct: true", "corect: true", r"mine.yaml: there is no filter called 'corect'; did you mean 'correct'"),
        ("confidence: 0.5", "confidence: 2", r"mine.yaml: the filter's confidence must lie between 0 and 1"),
        ("confidence: 0.5", "confidence: high", r"mine.yaml: confidence must be a number, but 'high' was given"),
        ("correct: true", "correct: 1", r"mine.yaml: correct must be true or false, but 1 was given"),
        ("GA: genatt", "GA: genat", r"mine.yaml, method 'GA': there is no method called 'genat'; did you mean genatt"),
        ("steps=4", "step=4", r"mine.yaml, method 'IG': ig has no parameter called 'step'; did you mean steps"),
        ("GA: genatt", "GA: 3", r"mine.yaml: the method 'GA' must be a spec such as 'ig\(steps=20\)', not 3"),
        ("GA: genatt", "GA: ig( steps=4 )", r"mine.yaml: the method 'GA' is there already, as 'IG'; drop one"),
        ("GA: genatt", "IG: genatt", r"mine.yaml gives 'IG' twice, the second time in line 8; leave one out"),
        ("[random]", "[4]", r"mine.yaml: the method '4' must be a spec"),
        (
            "Del: deletion",
            "Del: deltion",
            r"column 'Del', which names neither .* called 'deltion'; did you mean deletion",
        ),
        ("[Ins, Del]}", "[Ins, Dle]}", r"column 'Ins - Del', which names neither an earlier column nor a metric"),
        ("[Ins, Del]}", "[Ins]}", r"column 'Ins - Del' must be a metric, \{difference: \[one, other\]\} or"),
        ("{difference", "{diff", r"column 'Ins - Del' must be a metric, \{difference: \[one, other\]\} or"),
        ("columns: [Ins, Del]", "columns: [Ins, De]", r"published: there is no column called 'De'; did you mean 'Del'"),
        ("IG: [0.5, 0.25]", "Ig: [0.5, 0.25]", r"published: there is no method called 'Ig'; did you mean 'IG'"),
        ("[0.5, 0.25]", "[0.5]", r"mine.yaml: 2 published numbers are wanted for 'IG', not \[0.5\]"),
        ("[0.5, 0.25]", "[0.5, good]", r"published for 'IG': Del must be a number, but 'good' was given"),
        ("model: demo", "model: [demo]", r"mine.yaml: model must be text, but \['demo'\] was given"),
        ("model: demo", "model: demo\nexplains: truth", r"explains must be predicted or label, but 'truth' was given"),
        ("model: demo", "model: demo\nlimit: 0", r"limit must be a whole number of 1 or more, but 0 was given"),
        ("model: demo", "model: demo\nsize: 224", r"size must be \[height, width\], but 224 was given"),
        ("model: demo", "model: demo\nparts: {a b: {}}", r"a part's name has letters, digits, - and _ only, but 'a b'"),
        ("model: demo", "model: demo\nparts: {a: {dat: x}}", r"mine.yaml, part a: there is no key called 'dat'"),
        ("model: demo", "model: demo\nparts: [a]", r"mine.yaml: parts must be a mapping from names to values"),
        ("model: demo", "model: demo\nparts: {}", r"mine.yaml has no parts; give one, or leave the key out"),
        ("data: scenes:28", "limit: 3", r"mine.yaml does not say which data; add the key 'data'"),
        ("title: Two methods", "note: none", r"mine.yaml has no title"),
        ("model: demo", "model: [demo", r"mine.yaml is not YAML: .* in line \d+; correct it there"),
        (
            "GA: genatt",
            "No: genatt",
            r"methods: YAML does not read the name False as text; put it in quotes",
        ),
        ("[0.5, 0.25]", "[0.5, .nan]", r"published for 'IG': Del must be a number, but nan was given"),
        ("model: demo", "model: demo\nparts: &p {a: *p}", r"mine.yaml cannot be read \(maximum recursion depth"),
        (WHOLE, "just words", r"mine.yaml must be a mapping from names to values, but 'just words' was given"),
        (WHOLE, "", r"mine.yaml must be a mapping from names to values, but None was given"),
        ("ours:", "sweep: {axis: n, values: [1], methods: {A: ig}}\nours:", r"the sweep's 'A' must have one \{\} for"),
        ("ours:", "sweep: {axis: n, values: [a], methods: {A: 'ig(steps={})'}}\nours:", r"n must be a number, but 'a'"),
        ("ours:", "sweep: {axis: n, methods: {A: ig}}\nours:", r"a sweep needs an axis and a list of values"),
        ("ours:", "sweep: {axes: n}\nours:", r"there is no key of a sweep called 'axes'; did you mean 'axis'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in WHOLE
    with pytest.raises(InputError, match=words) as caught:
        own(tmp_path, WHOLE.replace(old, new, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mda/tabel5", "there is no protocol called 'mda/tabel5'; did you mean mda/table5 or"),
        ("table3", "did you mean aha/table3 or mda/table3 or tis/table3"),
        ("nothing", "there is no protocol called 'nothing'; see 'vitrail protocols'"),
        ("", "there is no protocol called ''"),
        ("no/such.yaml", "there is no file no/such.yaml; give a protocol's file"),
    ],
)
def test_names_that_are_not_there(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_protocol(name)


def test_what_no_run_wrote_is_refused() -> None:
    for wrong in ({}, {"parts": 3}, {"parts": [{}]}, to_dict(read("scenes")) | {"extra": 1}):
        with pytest.raises(InputError, match="this is no protocol that vitrail wrote"):
            from_dict(wrong)


# ------------------------------------------------------------------------------------------------ the page, the command


def test_the_pages_example_runs(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    plain, shortcut = own(tmp_path, text).parts
    assert plain.sweep is not None
    assert list(plain.sweep.at.values()) == [("TIS", 0.25), ("TIS", 0.5), ("TIS", 0.75)]
    small = replace(shortcut, limit=1, methods={"GenAtt": "genatt"}, ours=(), sweep=None)
    found = run(small.plan(), "memory://the-pages-example", device="cpu")
    assert len(found.rows) == 4


def test_the_pages_list_is_true() -> None:
    lines = [f"| `{name}` | {read(name).title} | {read(name).paper} |" for name in NAMES]
    assert "\n".join(lines) in PAGE.read_text(encoding="utf-8"), "\n".join(["the list must be", *lines])


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["protocols", "tis/table*"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in protocols("tis/table*"))
    assert cli.main(["protocols", "var/*", "--json"]) == 0
    assert [from_dict(one) for one in json.loads(capsys.readouterr().out)] == [
        read(name) for name in protocols("var/*")
    ]
    assert cli.main(["protocols", "nothing*"]) == 2
    assert "no protocol matches 'nothing*'" in capsys.readouterr().err


def test_rows_of_aha_join_with_an_explainer() -> None:
    without, given = read_protocol("aha/table1"), read_protocol("aha/table1", explainer="some/folder")
    assert "AHA" in without.parts[0].later
    assert given.parts[0].methods["AHA T = 3"] == parse("aha(explainer='some/folder', refine=3, contrast=1)").spec
    assert not given.parts[0].later
    shipped, own = (read_protocol("aha/scenes", explainer=e).parts[0].methods["AHA"] for e in (None, "some/folder"))
    assert (shipped, own) == ("aha", parse("aha(explainer='some/folder')").spec)
    swept = read_protocol("aha/refine", explainer="some/folder").parts[0].sweep
    assert swept is not None
    assert [place for _, place in swept.at.values()] == [0, 1, 3, 5]


def test_the_explainer_that_comes_with_vitrail_joins_by_its_name() -> None:
    """Its spec as a run has it names no explainer: that is the default."""
    for name in ("aha/table1", "aha/table3", "aha/table4"):
        part = read_protocol(name, explainer="auto").parts[0]
        assert (part.methods["AHA"], part.later) == (parse("aha(contrast=1)").spec, {})
        assert narrowed(read_protocol(name, explainer="auto"), methods=["AHA T = 3"]).parts[0].methods == {
            "AHA T = 3": parse("aha(refine=3, contrast=1)").spec
        }
    swept = read_protocol("aha/refine", explainer="auto").parts[0]
    assert swept.sweep is not None
    assert swept.methods["AHA, T=3"] == parse("aha(refine=3, contrast=1)").spec
    with pytest.raises(InputError, match=r"the row AHA \(aha\(.*\) needs an explainer; add --explainer with a folder"):
        narrowed(read_protocol("aha/table1"), methods=["AHA"])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("aha", "aha(explainer='F')"),
        ("aha()", "aha(explainer='F')"),
        ("aha(refine=3)", "aha(explainer='F', refine=3)"),
        ("aha(explainer=auto, refine=3)", "aha(explainer='F', refine=3)"),
        ("aha(refine=3, explainer=auto)", "aha(explainer='F', refine=3)"),
        ("aha(explainer='mine', refine=3)", "aha(explainer='mine', refine=3)"),
        ("aha('mine')", "aha('mine')"),
        ("ig", "ig"),
    ],
)
def test_a_row_of_aha_takes_the_explainer_unless_it_names_one(spec: str, expected: str) -> None:
    assert with_explainer(spec, "F") == expected
    assert with_explainer(spec, None) == spec


def test_the_explainer_that_comes_with_vitrail_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "bench",
        "aha/table1",
        "--model",
        "demo",
        "--data",
        "scenes:2",
        "--part",
        "predicted",
        "--metrics",
        "sparseness",
    ]
    out = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    assert cli.main([*words, *out, "--methods", "AHA", "--explainer", "auto"]) == 0
    assert "AHA" in capsys.readouterr().out
    assert cli.main([*words, *out, "--methods", "AHA"]) == 2
    assert "add --explainer" in capsys.readouterr().err
