"""Patches truly taken away: against a model run by hand on fewer tokens, in float64."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail
from helpers.oracle import oracle
from helpers.zoo import pictures, view_of
from vitrail import InputError, scenes
from vitrail.metric import Case, parse
from vitrail.model import View

SHARES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


@pytest.fixture(scope="module")
def case() -> Case:
    view = vitrail.load(copy.deepcopy(vitrail.load("demo").model).double(), size=(144, 144))
    images = vitrail.load("demo").preprocess.batch([scenes.make(seed).pil for seed in (3, 4)]).double()
    maps = vitrail.explain("demo", images.float(), "decompx").maps.double()
    return Case(view, images, maps, labels=torch.tensor([3, 4]))


def kept(view: View, image: Tensor, patches: Tensor) -> Tensor:
    """The probabilities when only these patches are there: the blocks run on fewer tokens."""
    layout = view.layout((144, 144))
    with torch.no_grad():
        tokens = view.embed(image[None])
        prefix = torch.arange(layout.prefix)
        left = tokens[:, torch.cat([prefix, patches.sort().values + layout.prefix])]
        return view.head(view.encode(left, layout)[-1], layout)[0].softmax(0)


@oracle("deletion_accuracy", "deletion_aopc", "insertion_accuracy", "insertion_aopc", "lodds")
@pytest.mark.parametrize("rising", [True, False])
def test_agrees_with_fewer_tokens_by_hand(case: Case, rising: bool) -> None:
    way = "insertion" if rising else "deletion"
    for i in range(2):
        order = case.maps[i].flatten().argsort(descending=True, stable=True)
        cut = [int(144 * share + 1e-9) for share in SHARES]
        answers = [kept(case.view, case.images[i], order[:n] if rising else order[n:]) for n in cut]
        whole = kept(case.view, case.images[i], order)
        label, predicted = i + 3, int(whole.argmax())
        x = np.array(SHARES)  # as they were asked for, though patches are whole
        x = np.append(x, 1.0) if rising else np.insert(x, 0, 0.0)
        answers = [*answers, whole] if rising else [whole, *answers]
        right = np.array([float(int(a.argmax()) == label) for a in answers])
        drop = np.array([float(whole[predicted] - a[predicted]) for a in answers])
        odds = np.array([float(whole[predicted].log() - a[predicted].log()) for a in answers])
        wanted = {f"{way}_accuracy": right, f"{way}_aopc": drop} | ({} if rising else {"lodds": odds})
        for name, values in wanted.items():
            found = parse(name)
            area = float(torch.trapezoid(torch.from_numpy(values), torch.from_numpy(x))) / (x[-1] - x[0])
            assert float(found.measure(case)[i]) == pytest.approx(area, abs=1e-7), name
            integral = parse(f"{name}(area=integral)").measure(case)[i]
            assert float(integral) == pytest.approx(area * (x[-1] - x[0]), abs=1e-7)
            mean = parse(f"{name}(area=mean)").measure(case)[i]  # of the shares asked for: the whole picture is none
            assert float(mean) == pytest.approx((values[:-1] if rising else values[1:]).mean(), abs=1e-7), name


@oracle("comprehensiveness", "sufficiency")
def test_eraser(case: Case) -> None:
    order = case.maps[0].flatten().argsort(descending=True, stable=True)
    whole = kept(case.view, case.images[0], order)
    c = int(whole.argmax())
    cut = [1, 7, 14, 28, 72]  # 1, 5, 10, 20 and 50 % of 144
    gone = [float(whole[c] - kept(case.view, case.images[0], order[n:])[c]) for n in cut]
    left = [float(whole[c] - kept(case.view, case.images[0], order[:n])[c]) for n in cut]
    assert float(parse("comprehensiveness").measure(case)[0]) == pytest.approx(np.mean(gone), abs=1e-7)
    assert float(parse("sufficiency").measure(case)[0]) == pytest.approx(np.mean(left), abs=1e-7)


def test_all_token_metrics_share_their_passes() -> None:
    view = vitrail.load("demo")
    images = view.preprocess.batch([scenes.make(3).pil])
    case = Case(view, images, torch.rand(1, 12, 12), labels=torch.tensor([3]))
    before = view.meter.forwards
    for name in ("insertion_accuracy", "insertion_aopc", "deletion_accuracy", "deletion_aopc", "lodds"):
        parse(name).measure(case)
    assert view.meter.forwards - before == 1 + 2 * 9


def test_models_without_tokens_need_a_baseline() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    view = vitrail.load(model, size=(32, 32))
    case = Case(view, torch.rand(2, 3, 32, 32), torch.rand(2, 32, 32))
    with pytest.raises(InputError, match=r"no patch tokens.*baseline=zero_norm"):
        parse("deletion_aopc").measure(case)
    assert parse("deletion_aopc(baseline=zero_norm)").measure(case).shape == (2,)


def test_finer_maps_are_averaged_over_patches() -> None:
    view = view_of("non_square")
    rows, columns = view.grid
    fine = torch.rand(2, 4 * rows, 4 * columns)
    case = Case(view, pictures(2, view.size), fine)
    expected = fine.unflatten(2, (columns, 4)).unflatten(1, (rows, 4)).mean((2, 4)).flatten(1)
    torch.testing.assert_close(case.cells(), expected)
