"""A report in every form, and the verb that writes it: every figure, mark and sign."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.reported import (
    DEL,
    INS,
    NUMBERS,
    PART,
    PROTOCOL,
    Reader,
    cell,
    write_part,
)
from vitrail import cli
from vitrail.bench import Store
from vitrail.bench.protocol import Column
from vitrail.bench.protocol_json import to_dict
from vitrail.bench.report import Result, gather, html, latex, markdown, terminal
from vitrail.bench.report import csv as long_form
from vitrail.bench.report.as_latex import escape


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
