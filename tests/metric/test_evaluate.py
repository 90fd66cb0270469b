"""The front door of judging: what goes in, what comes out, and what is said when it cannot be done."""

import dataclasses
import gc
import json
import re
import resource
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import vitrail
from helpers.judged import judged
from vitrail import InputError, Scores, scenes, show
from vitrail.method import MDA
from vitrail.metric import METRICS, Case, metrics, parse
from vitrail.metric.statistics import interval
from vitrail.model import Target, View

STEP = 144 * 144 // 8
CURVES = (f"insertion(step={STEP})", f"deletion(step={STEP})")


# ------------------------------------------------------------------------------------------------------ what goes in


def test_methods_explanations_and_maps_are_judged_alike(pictures: list[Any]) -> None:
    found = vitrail.explain("demo", pictures, "decompx")
    given = {"spec": "decompx", "value": found, "maps": found.maps, "array": found.maps.numpy()}
    scores = vitrail.evaluate("demo", pictures, given, [*CURVES, "sparseness"])
    for metric in scores.metrics:
        for method in scores.methods[1:]:
            np.testing.assert_allclose(scores.row(metric, method).each, scores.row(metric, "spec").each, rtol=1e-4)


def test_rivals_reach_the_method(pictures: list[Any], labels: list[int]) -> None:
    """``var(classes=present)`` is told what else a picture shows, in every batch, and by every metric that explains."""
    rivals = torch.tensor([[(label + 1) % 14, -1] for label in labels])
    target = Target(torch.tensor(labels), rivals=rivals)
    spec, asked = "var(ixg, classes=present)", ["sparseness", "cascading_randomisation(steps=1)"]
    found = vitrail.evaluate("demo", pictures, spec, asked, target=target, batch=2)
    explained = vitrail.explain("demo", pictures, spec, target)
    again = vitrail.evaluate("demo", pictures, explained, asked, target=target)
    plain = vitrail.evaluate("demo", pictures, "ixg", asked, target=target)
    for metric in asked:
        each = found.row(metric).each
        np.testing.assert_allclose(again.row(metric).each, each, rtol=1e-4, atol=1e-6)
        assert not np.allclose(plain.row(metric).each, each)
    with pytest.raises(InputError, match="which other classes the pictures show"):
        vitrail.evaluate("demo", pictures, spec, asked, target=labels)


def test_batches_do_not_matter(pictures: list[Any], masks: list[Any]) -> None:
    specs = [CURVES[1], "deletion_aopc", "pointing_game", "average_drop", "segmentation"]
    whole, parts = (vitrail.evaluate("demo", pictures, "genatt", specs, masks=masks, batch=batch) for batch in (5, 2))
    for one, other in zip(whole.rows, parts.rows):
        np.testing.assert_allclose(one.each, other.each, rtol=1e-4, atol=1e-5, err_msg=one.metric)
        assert one.value == pytest.approx(other.value, rel=1e-4)


def test_one_set_of_passes_for_all(pictures: list[Any]) -> None:
    view = vitrail.load("demo")
    maps = torch.rand(5, 144, 144)
    also = [f"mas_{spec}" for spec in CURVES] + [
        f"monotonicity(step={STEP})",
        f"deletion_aopc(baseline=zero_norm, step={STEP})",
    ]
    alone, many = (vitrail.evaluate(view, pictures, maps, list(specs)) for specs in (CURVES, [*CURVES, *also]))
    assert alone.forwards == many.forwards == 5 * (2 * 7 + 2 + 1)


def test_masks_go_the_way_of_the_picture() -> None:
    """A model that crops sees the middle of the mask too."""
    preprocess = dataclasses.replace(vitrail.load("demo").preprocess, crop=0.5)
    mask = torch.zeros(200, 200, dtype=torch.int8)
    mask[50:150, 50:150] = 1
    assert preprocess.mask(mask).all(), "exactly the middle"
    mask[:100] = -1
    seen = preprocess.mask(mask)
    assert (seen[: len(seen) // 2] == -1).all()
    assert (seen[len(seen) // 2 :] == 1).all()


@pytest.mark.parametrize("form", ["bool", "uint8", "white", "tensor", "pil", "file"])
def test_masks_as_users_have_them(form: str, pictures: list[Any], masks: list[Any], tmp_path: Path) -> None:
    from PIL import Image

    mask = masks[0]
    file = tmp_path / "mask.png"
    Image.fromarray(mask.astype(np.uint8)).save(file)
    given = {
        "bool": mask,
        "uint8": mask.astype(np.uint8),
        "white": mask.astype(np.uint8) * 255,
        "tensor": torch.from_numpy(mask),
        "pil": Image.fromarray(mask),
        "file": file,
    }[form]
    maps = torch.from_numpy(mask)[None].float()
    found = vitrail.evaluate("demo", pictures[:1], maps, "region_iou", masks=[given])
    assert found.rows[0].value == pytest.approx(1.0)


@pytest.mark.parametrize(("kernel", "iou", "f1"), [(1, 0.20, 1 / 3), (11, 0.25, 0.40)])
def test_overlap_with_and_without_the_blur(pictures: list[Any], kernel: int, iou: float, f1: float) -> None:
    """Noise with a sign is above zero in half of the picture, and nearly everywhere once blurred."""
    maps = torch.randn(1, 144, 144, generator=torch.Generator().manual_seed(0))
    metrics = [f"{name}(threshold=0, kernel={kernel})" for name in ("region_iou", "region_f1")]
    found = vitrail.evaluate("demo", pictures[:1], maps, metrics, boxes=[[(0, 0, 72, 72)]])
    assert [row.value for row in found.rows] == pytest.approx([iou, f1], abs=0.01)


def test_boxes(pictures: list[Any]) -> None:
    maps = torch.zeros(2, 144, 144)
    maps[:, 20:40, 10:30] = 1
    boxes = [[(10, 20, 30, 40)], np.array([[10, 20, 20, 40], [20, 20, 30, 40]])]
    found = vitrail.evaluate("demo", pictures[:2], maps, ["region_iou", "pointing_game(below=0.5)"], boxes=boxes)
    assert [row.value for row in found.rows] == pytest.approx([1.0, 1.0])


def test_empty_masks_are_skipped_and_counted(pictures: list[Any], masks: list[Any]) -> None:
    given = [masks[0], np.zeros_like(masks[1]), masks[2], np.zeros_like(masks[1]), masks[4]]
    wanted = [name for name in metrics() if METRICS[name].needs == {"masks"}]
    assert len(wanted) == 8
    for row in vitrail.evaluate("demo", pictures, "genatt", wanted, masks=given).rows:
        assert (row.counted, row.skipped) == (3, 2), row.metric
        assert np.isnan(row.each[[1, 3]]).all(), row.metric
        assert np.isfinite(row.value), row.metric
    nothing = vitrail.evaluate("demo", pictures[:1], "genatt", wanted, masks=[np.zeros_like(masks[0])])
    assert all(np.isnan(row.value) for row in nothing.rows), "never a silent hit"


def test_labels_by_name_and_number(pictures: list[Any], labels: list[int]) -> None:
    view = vitrail.load("demo")
    assert view.classes is not None
    names = [view.classes[c] for c in labels]
    one, other = (
        vitrail.evaluate(view, pictures, "genatt", "positive_perturbation", labels=x) for x in (labels, names)
    )
    assert one.rows[0].each.tolist() == other.rows[0].each.tolist()


def test_mda_cells_stay_whole() -> None:
    maps = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert MDA().enlarge(maps, (4, 4))[0].tolist() == [[1, 1, 2, 2]] * 2 + [[3, 3, 4, 4]] * 2
    case = Case(vitrail.load("demo"), torch.zeros(1, 3, 144, 144), maps, method=vitrail.method.parse("smoothgrad(mda)"))
    assert len(case.heat().unique()) == 4
    assert len(case.heat(enlarge="bilinear").unique()) > 4


def test_a_function_as_target(pictures: list[Any]) -> None:
    def margin(logits: Tensor) -> Tensor:
        return logits[:, 0] - logits[:, 1]

    found = vitrail.evaluate("demo", pictures[:2], "ixg", CURVES[1], target=margin)
    assert np.isfinite(found.rows[0].each).all()
    explanation = vitrail.explain("demo", pictures[:2], "ixg", margin)
    with pytest.raises(InputError, match="function of the logits; give it again as the target"):
        vitrail.evaluate("demo", pictures[:2], explanation, CURVES[1])
    again = vitrail.evaluate("demo", pictures[:2], explanation, CURVES[1], target=margin)
    np.testing.assert_allclose(again.rows[0].each, found.rows[0].each, rtol=1e-4)


# ---------------------------------------------------------------------------------------------------- what comes out


@pytest.fixture(scope="module")
def scores(pictures: list[Any], masks: list[Any], labels: list[int]) -> Scores:
    specs = [*CURVES, f"mas_deletion(step={STEP})", "pointing_game", "segmentation", "positive_perturbation"]
    return vitrail.evaluate("demo", pictures, ["decompx", "random"], specs, masks=masks, labels=labels)


def test_a_good_method_beats_chance(scores: Scores) -> None:
    assert scores.difference("deletion", "decompx", "random").high < 0
    ranking = scores.ranking("deletion")
    assert ranking.ranks.tolist() == [1.0, 2.0]
    assert scores.win_rates("deletion")[0, 1] == 1


def test_rows_say_everything(scores: Scores) -> None:
    row = scores.row("deletion", "decompx")
    assert row.low <= row.value <= row.high
    assert row.each.shape == (5,)
    assert row.value == pytest.approx(row.each.mean())
    assert row.protocol["metric"]["baseline"] == {"id": "zero_norm"}
    assert {"step", "area", "sign", "target", "enlarge", "score"} <= row.protocol["metric"].keys()
    assert row.curve is not None
    assert row.curve.responses.shape == (5, 9)
    assert scores.row("pointing_game", "random").curve is None
    table = scores.table()
    assert "**" in table
    assert "deletion(step=2592) ↓" in table
    assert "baseline zero_norm" in table
    assert repr(scores).startswith("Scores(demo, 5 images")
    assert "5 images" in str(row)


def test_unclear_rows_are_refused(scores: Scores) -> None:
    with pytest.raises(InputError, match="more than one row has the metric 'deletion'"):
        scores.row("deletion")
    with pytest.raises(InputError, match=r"no row has the metric 'aic'.*pointing_game.*decompx, random"):
        scores.row("aic", "random")


def test_parquet_comes_back(scores: Scores, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = scores.to_parquet(tmp_path / "deep" / "scores.parquet")
    again = Scores.from_parquet(path)
    assert again.table() == scores.table()
    assert again.images == scores.images
    assert again.fingerprint == scores.fingerprint
    table = pq.read_table(path)
    assert table.num_rows == 5 * len(scores.rows)
    assert json.loads(table["protocol"][0].as_py())["metric"]["id"] == "insertion"
    assert [p.name for p in path.parent.iterdir()] == ["scores.parquet"], "and nothing half written beside it"
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="holds no scores that can be read"):
        Scores.from_parquet(broken)


def test_curves_are_drawn(scores: Scores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    mean = show.mean_curves

    def watched(lines: Any, **how: Any) -> Any:
        drawn.update(how, lines=lines)
        return mean(lines, **how)

    monkeypatch.setattr(show, "mean_curves", watched)
    picture = scores.draw("deletion", tmp_path / "deletion.png")
    assert drawn["up"] == "probability"
    for line in drawn["lines"]:
        low, high = line.band
        assert (low >= 0).all()
        assert (low <= high).all()
        assert (high <= 1).all()
        assert (low[3], high[3]) == pytest.approx(interval(line.values[:, 3])), "as the table's, point by point"
    assert picture.size[0] > 400
    assert (tmp_path / "deletion.png").is_file()
    with pytest.raises(InputError, match="no area under a curve"):
        scores.draw("pointing_game")


def test_rows_are_known_by_any_spelling(pictures: list[Any]) -> None:
    scores = vitrail.evaluate("demo", pictures[:1], ["skipplus", "var(skipplus)", "ixg"], ["sparseness", CURVES[1]])
    assert scores.row("sparseness", "skipplus").method == "skipplus(decompx)"
    assert scores.row("sparseness", "skipplus(base=decompx)").method == "skipplus(decompx)"
    assert scores.row("sparseness", "var").method == scores.row("sparseness", "var(skipplus)").method
    assert scores.row(f"deletion(baseline=zero_norm, step={STEP})", "ixg") is scores.row("deletion", "ixg")
    with pytest.raises(InputError, match="no row has"):
        scores.row("sparseness", "genatt")


# ---------------------------------------------------------------------------------------------------- empty maps


@dataclasses.dataclass(frozen=True)
class Constant(vitrail.method.Method):
    """The same everywhere."""

    level: float = 0.0
    id = "constant"
    needs = frozenset()

    def maps(self, view: View, batch: Any) -> Tensor:
        batch.settle(view)
        return torch.full((len(batch), *view.grid_at(batch.size)), self.level, device=batch.images.device)


def test_empty_maps_are_told_and_not_ranked(pictures: list[Any]) -> None:
    """Insertion of a map without evidence goes row by row, and may be the best by chance."""
    pictures = pictures[:3]
    given = {"ixg": "ixg", "nothing": Constant(0.0), "level": torch.ones(3, 3, 3), "random": "random"}
    scores = vitrail.evaluate("demo", pictures, given, [CURVES[1], "complexity"])
    assert dict(scores.empty) == {"nothing": 3, "level": 3}
    table = scores.table()
    assert "nothing: no evidence on 3 of 3 pictures, so it is not ranked" in table
    for line in table.splitlines():
        assert "**" not in line or line.startswith(("| ixg", "| random"))
    ranks = scores.ranking("complexity").ranks
    assert np.isnan(ranks).tolist() == [False, True, True, False]
    assert sorted(ranks[[0, 3]]) == [1, 2]
    some = torch.rand(3, 3, 3)
    some[1] = 0
    few = vitrail.evaluate("demo", pictures, {"some": some, "ixg": "ixg"}, CURVES[1])
    assert "some: no evidence on 1 of 3 pictures" in few.table()
    assert "not ranked" not in few.table()
    assert few.ranks("some")


def test_notes_reach_the_table(pictures: list[Any], tmp_path: Path) -> None:
    scores = vitrail.evaluate("demo", pictures[:2], "tis(masks=2, keep=2)", "sparseness")
    (line,) = (line for line in scores.table().splitlines() if "in none of its masks" in line)
    assert re.search(r"14[012] (to 14[012] )?of 144 patches.*\(2 pictures\)", line)
    again = Scores.from_parquet(scores.to_parquet(tmp_path / "scores.parquet"))
    assert again.table() == scores.table()


def test_a_sensitivity_stands_beside_its_floor(pictures: list[Any]) -> None:
    scores = vitrail.evaluate("demo", pictures[:1], ["random", "ixg"], "max_sensitivity(samples=1)")
    assert scores.metrics == ["max_sensitivity(samples=1)", "noise_floor(samples=1)"]
    assert scores.row("noise_floor", "random").value > 0.5
    assert scores.row("noise_floor", "ixg").value < 1e-5
    same = vitrail.evaluate("demo", pictures[:1], "random", "max_sensitivity(samples=1, draws=same)")
    assert same.metrics == ["max_sensitivity(samples=1, draws=same)"]
    assert same.rows[0].value == 0


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("explanation", "specs", "more", "message"),
    [
        ("genatt", "pointing_game", {}, "needs to know where the objects are; give masks or boxes"),
        ("genatt", "positive_perturbation", {}, r"needs the true classes; give labels, .*target=predicted"),
        (torch.rand(2, 3, 3), "max_sensitivity", {}, "needs the method and not only maps"),
        ("genatt", "insertoin", {}, "did you mean insertion"),
        ("genatt", [], {}, "no metric was given"),
        ([], "deletion", {}, "no explanation was given"),
        (torch.rand(3, 3, 3), "deletion", {}, r"one map an image, 2 in all, but maps has \(3, 3, 3\)"),
        (["genatt", "genatt"], "deletion", {}, "the same name"),
        (7, "deletion", {}, "int was given"),
        ("genatt", "pointing_game", {"masks": [np.ones((144, 144))]}, "one mask an image, but 1 were given for 2"),
        ("genatt", "pointing_game", {"masks": [np.ones((9, 9))] * 2}, "9 x 9 pixels, but the image 144 x 144"),
        ("genatt", "pointing_game", {"masks": [np.full((144, 144), 7)] * 2}, "holds 7"),
        ("genatt", "pointing_game", {"masks": [np.ones((144, 144, 3))] * 2}, r"must be \(height, width\)"),
        ("genatt", "pointing_game", {"boxes": [[1, 2, 3]] * 2}, r"boxes must be \(x0, y0, x1, y1\)"),
        ("genatt", "pointing_game", {"boxes": [], "masks": []}, "give one of them"),
        ("genatt", "deletion", {"batch": -1}, "batch must be 1 or more"),
    ],
)
def test_mistakes_get_a_sentence(pictures: list[Any], explanation: Any, specs: Any, more: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        vitrail.evaluate("demo", pictures[:2], explanation, specs, **more)


def test_memory_stays_flat() -> None:
    """Forty pictures one after the other; benchmarks/memory.py takes 2,000."""
    view = vitrail.load("demo")
    image = view.preprocess.batch([scenes.make(0).pil])
    maps = torch.rand(1, 12, 12)
    specs = [f"insertion(step={144 * 36})", "deletion_aopc", "sparseness", "average_drop"]
    for round_ in range(50):
        if round_ == 10:
            gc.collect()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        vitrail.evaluate(view, image, maps, specs)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "kilobytes"


# ------------------------------------------------------------------------------------------------- what must hold

ORDER_ALONE = ["average_precision", "relevance_rank", "pointing_game", "deletion(step=512)", "deletion_aopc"]


@cache
def small() -> View:
    return judged("token").view


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), power=st.integers(0, 2), scale=st.floats(0.1, 10), shift=st.floats(-3, 3))
def test_rank_metrics_see_only_the_order(seed: int, power: int, scale: float, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Whole numbers, so that no transformation makes two values equal or tells equal ones apart.
    maps = torch.randint(-8, 8, (2, 4, 4), generator=generator).double()
    bent = scale * maps * maps.abs() ** power + shift
    images = torch.randn(2, 3, 64, 64, generator=generator)
    masks = torch.rand(2, 64, 64, generator=generator) < 0.3
    one, other = (
        Case(small(), images, m.repeat_interleave(16, 1).repeat_interleave(16, 2), masks=masks.to(torch.int8))
        for m in (maps, bent)
    )
    for spec in ORDER_ALONE:
        torch.testing.assert_close(parse(spec).measure(one), parse(spec).measure(other), msg=spec)
