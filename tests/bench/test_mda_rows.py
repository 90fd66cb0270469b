"""Rows of MDA's protocols are what the authors' code computes by these names: seeds, starts, normalisation, blurs."""

import pytest

from vitrail.bench.load import protocol, protocols
from vitrail.method import parse

CODE = {
    "GC": "genatt(start=last, heads=mean_clamp)",  # attention times gradient, heads' mean, then the positive part
    "IG": "t_attn(carried=False)",  # the integrated gradient of the last attention
    "ViT-CX": "vit_cx(normalise=True)",
    "T-Attn": "t_attn(start=0, last_twice=True)",
    "T-Attr": "t_attr(normalise=True)",  # from block 0, rows summing to one
    "Bi-Attn": "bt_h",  # from the fourth block of twelve
    "TIS": "tis(normalise=True)",
}
FROM_ONE = "adaptive_blur(first=1)"
"""Where the scripts begin with no blur at all; the others begin at 31 pixels."""

MDA = {
    "table1": "mda",
    "table2": f"mda(kappa=0, gamma=1, baseline={FROM_ONE})",  # the map of ranks
    "table3": f"mda(baseline={FROM_ONE})",
    "table4": "mda",
    "table5": "mda",
    "table6": f"mda(baseline={FROM_ONE})",
}


@pytest.mark.parametrize("table", MDA)
def test_tables_beside_other_methods(table: str) -> None:
    (part,) = protocol(f"mda/{table}").parts
    expected = CODE | {"MDA": MDA[table]}
    assert {label: parse(spec) for label, spec in part.methods.items()} == {k: parse(v) for k, v in expected.items()}
    assert set(part.published) == set(expected)
    assert "ig" in part.ours, "the integrated gradient of the pixels is no row of the paper"


def test_seeds_are_the_methods_of_the_tables() -> None:
    (part,) = protocol("mda/seed").parts
    seeds = {label: f"mda(seed={spec})" for label, spec in CODE.items()} | {"No": "mda(seed=None)"}
    found = {label: parse(part.methods[f"{label} seed"]) for label in seeds}
    assert found == {label: parse(spec) for label, spec in seeds.items()}


@pytest.mark.parametrize(("table", "rows"), [("table7", 3), ("table8", 3), ("table9", 3), ("tau", 11)])
def test_insertion_and_deletion_alone_are_the_ends_of_tau(table: str, rows: int) -> None:
    (part,) = protocol(f"mda/{table}").parts
    specs = [parse(spec) for label, spec in part.methods.items() if label.startswith("MDA")]
    assert len(specs) == rows
    assert {parse("mda(tau=0)"), parse("mda(tau=1)"), parse("mda")} <= set(specs)


def test_no_row_is_tied_to_a_depth() -> None:
    specs = [spec for name in protocols("mda/*") for part in protocol(name).parts for spec in part.methods.values()]
    assert len(specs) > 50
    assert not [spec for spec in specs if "start=1" in spec]
