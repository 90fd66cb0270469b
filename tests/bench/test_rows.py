"""Each row is what its label says: every protocol and preset against `rows`, what the papers' own code does."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from helpers.rows import OWN, PRESETS, TABLES, Either, Row
from vitrail import metric
from vitrail.bench.protocol import Column, Part, Protocol
from vitrail.bench.protocol_files import protocols, read_protocol
from vitrail.method import parse
from vitrail.metric import parse as parse_metric

NAMES = [name for name in protocols() if name not in OWN]


@cache
def read(name: str) -> Protocol:
    return read_protocol(name)


def wrong(config: Any, wanted: Any, where: str) -> Iterator[str]:
    """In words, where something that is configured is not what a row says."""
    if isinstance(wanted, Either):
        ways = [list(wrong(config, one, where)) for one in wanted]
        if all(ways):
            rows = [way for way, one in zip(ways, wanted) if isinstance(one, Row)]
            yield from rows[0] if rows else [f"{where} is {config!r}, not {tuple(wanted)!r}"]
    elif isinstance(wanted, Row):
        if not isinstance(config, dict) or config.get("id") != wanted.id:
            yield f"{where} is {config['id'] if isinstance(config, dict) else config!r}, not {wanted.id}"
            return
        for key, value in wanted.fixed.items():
            if key not in config:
                yield f"{where} has no parameter {key}, which should be {value!r}"
            else:
                yield from wrong(config[key], value, f"{where}, {key}")
    elif config != wanted:
        yield f"{where} is {config!r}, not {wanted!r}"


def notes(found: Protocol) -> str:
    """A protocol's note with those that it refers to, on one line."""
    text, seen, left = "", set(), [found.name]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            note = found.note if name == found.name else read(name).note
            text += " " + " ".join(note.split())
            left += [one for one in re.findall(r"\b\w+/\w+\b", note) if one in NAMES]
    return text


def findings(found: Protocol) -> list[str]:
    """Every row of a protocol that is not what its label says."""
    table, said = TABLES[found.name], notes(found)
    return [line for part in found.parts for line in _part(part, table, said, f"{found.name} {part.name}")]


def _part(part: Part, table: Any, said: str, where: str) -> Iterator[str]:
    lines = {} if part.sweep is None else {label: line for label, (line, _) in part.sweep.at.items()}
    for label, spec in part.methods.items():
        if label.startswith("AHA"):
            continue  # the paper tells of no parameters but T, which the label says
        wanted = table.swept.get(lines[label]) if label in lines else table.methods.get(label)
        if wanted is None:
            yield f"{where}: nothing is written down of {label}"
            continue
        yield from wrong(parse(spec).config, wanted, f"{where}: {label}")
        if wanted.said and wanted.said not in said:
            yield f"{where}: the note does not say {wanted.said!r} of {label}"
    for column in part.columns:
        if column.name in table.columns:
            yield from _column(column, table.columns[column.name], f"{where}: {column.name}")
        elif all(weight > 0 for _, weight in column.terms) and "(" not in column.name and not _extra(column):
            yield f"{where}: nothing is written down of the column {column.name}"
    if table.explains is not None and part.explains != table.explains:
        yield f"{where} explains the {part.explains}, not the {table.explains}"
    if table.explains is None and part.explains != part.name:
        yield f"{where} explains the {part.explains}"
    if table.filter and part.filter.given != table.filter:
        yield f"{where} has the filter {part.filter.given}, not {table.filter}"


def _extra(column: Column) -> bool:
    """Columns beside the paper's: the unblurred overlap of VAR, and the signed form of a similarity."""
    return column.name in ("IoU", "F1", "AIC") or column.name.endswith("(signed)")


def _column(column: Column, wanted: Row | list[Row], where: str) -> Iterator[str]:
    rows = wanted if isinstance(wanted, list) else [wanted]
    if len(rows) != len(column.terms):
        yield f"{where} is made of {len(column.terms)} metrics, not {len(rows)}"
        return
    for (spec, _), one in zip(column.terms, rows):
        config = parse_metric(spec).config
        free = {"step": config.get("step")} if where.startswith("aha/") and "step" in one.fixed else {}
        yield from wrong(config, Row(one.id, {**one.fixed, **free}), where)


# ----------------------------------------------------------------------------------------------------------- as shipped


def test_every_protocol_and_preset_is_written_down() -> None:
    assert set(NAMES) == set(TABLES)
    assert set(metric.PRESETS) == set(PRESETS)


@pytest.mark.parametrize("name", NAMES)
def test_each_row_is_what_its_label_says(name: str) -> None:
    assert findings(read(name)) == []


def preset_findings(name: str, preset: metric.Preset) -> list[str]:
    """Every metric of a preset that is not what the paper measures."""
    explains, rows = PRESETS[name]
    found = [] if preset.explains == explains else [f"{name} explains {preset.explains}, not {explains}"]
    metrics = [parse_metric(spec) for spec in preset.metrics]
    if len(metrics) != len(rows):
        return [*found, f"{name} has {len(metrics)} metrics, not {len(rows)}"]
    for one, wanted in zip(metrics, rows):
        found += wrong(one.config, wanted, f"{name}: {one.spec}")
    return found


@pytest.mark.parametrize("name", metric.PRESETS)
def test_each_preset_measures_as_its_paper(name: str) -> None:
    assert preset_findings(name, metric.PRESETS[name]) == []


# ----------------------------------------------------------------------------------------------- the test can fail


@pytest.mark.parametrize(
    ("name", "label", "spec", "words"),
    [
        ("tis/table3", "TIS", "tis", "normalise is False, not True"),
        ("tis/table4", "TIS", "tis(masks=512, normalise=True)", "masks is 512, not 1024"),
        ("tis/table1", "RISE", "rise", "score is 'probability', not 'logit'"),
        ("tis/table1", "TAM", "t_attn", "start is None"),
        ("tis/sparseness", "BT H", "bt_h", "start is None"),
        ("mda/table1", "GC", "gradcam", "is 'gradcam', not genatt"),
        ("mda/table1", "ViT-CX", "vit_cx", "normalise is False, not True"),
        ("mda/seed", "GC seed", "mda(seed=gradcam)", "seed is 'gradcam', not genatt"),
        ("var/table1", "GBP", "gbp", "reduce is 'abs', not 'sum'"),
        ("skipplus/figure4", "GradCAM", "gradcam(relu=False)", "is 'gradcam', not skipplus"),
        ("aha/table1", "Trans-Att.", "t_attn(start=0)", "last_twice is False, not True"),
    ],
)
def test_a_row_put_back_is_found(name: str, label: str, spec: str, words: str) -> None:
    whole = read(name)
    parts = tuple(
        replace(part, methods={**part.methods, label: spec}) if label in part.methods else part for part in whole.parts
    )
    found = findings(replace(whole, parts=parts))
    assert any(label in line and words in line for line in found), found


def test_a_column_an_explained_class_and_a_note_put_back_are_found() -> None:
    whole = read("tis/table3")
    (part, *_) = whole.parts
    found = findings(replace(whole, parts=(replace(part, explains="predicted"),)))
    assert found == ["tis/table3 deit explains the predicted, not the label"]
    columns = (Column("Energy", (("energy_pointing_game", 1.0),)),)
    found = findings(replace(whole, parts=(replace(part, columns=columns),)))
    assert found == ["tis/table3 deit: Energy, below is None, not 0.5"]
    assert any("does not say" in line for line in findings(replace(read("mda/table1"), note="")))
    old = metric.PRESETS["aha"]
    specs = [spec for spec in old.metrics if "perturbation" not in spec]
    specs += ["positive_perturbation", "negative_perturbation"]
    assert preset_findings("aha", replace(old, metrics=tuple(specs)))
    assert preset_findings("tis", replace(metric.PRESETS["tis"], explains="predicted"))


def test_no_row_is_tied_to_a_depth() -> None:
    specs = [spec for name in protocols("mda/*") for part in read(name).parts for spec in part.methods.values()]
    assert len(specs) > 50
    assert not [spec for spec in specs if "start=1" in spec]
