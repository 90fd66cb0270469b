"""The published conventions by name: which metrics a paper reports, and exactly how."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.errors import InputError, option
from vitrail.metric.base import Metric, Needs, parse
from vitrail.metric.case import Whose


@dataclass(frozen=True)
class Preset:
    """How one paper measures.

    Attributes:
        paper: Which.
        metrics: Spec strings that pin order, fill, steps, area rule, target and sign.
        explains: The class the paper explains; `evaluate` does the same unless it is told another.
        note: What else its numbers depend on.
    """

    paper: str
    metrics: tuple[str, ...]
    explains: Whose
    note: str = ""


def _each(spec: str, *baselines: str) -> tuple[str, ...]:
    return tuple(spec.format(baseline) for baseline in baselines)


_TIS = (
    "gaussian_blur(kernel=11, sigma=5)",
    "uniform_noise(space=normalised)",
    "image_mean(channels=together)",
    "zero_norm",
)
_AHA = ("black_pixel", "dataset_mean", "rise_blur(kernel=11, sigma=5)")

PRESETS: dict[str, Preset] = {
    "rise": Preset(
        "Petsiuk et al. 2018",
        ("insertion(baseline=rise_blur(kernel=11, sigma=5))", "deletion(baseline=zero_norm)"),
        "predicted",
        "224 pixels a step at 224 x 224; trapezoid.",
    ),
    "tis": Preset(
        "Englebert et al. 2023",
        (
            *_each("insertion(baseline={}, area=mean)", *_TIS),
            *_each("deletion(baseline={}, area=mean)", *_TIS),
            "pointing_game(below=0.5)",
            "energy_pointing_game(below=0.5)",
            "max_sensitivity(samples=10, radius=0.02)",
            "noise_floor(samples=10)",
            "sparseness(values=shifted, at=picture)",
        ),
        "label",
        "The clean start point is left out of the mean; sensitivity at the map's own grid.",
    ),
    "mda": Preset(
        "Walker et al. 2025",
        (
            "insertion(baseline=adaptive_blur, sign=absolute, target=predicted, monotone=True)",
            "deletion(baseline=zero_norm, sign=absolute, target=predicted, monotone=True)",
            "mas_insertion(baseline=adaptive_blur, sign=absolute, target=predicted, compat=authors)",
            "mas_deletion(baseline=zero_norm, sign=absolute, target=predicted, compat=authors)",
            "positive_perturbation",
            "negative_perturbation",
            "monotonicity(baseline=adaptive_blur(first=1), sign=absolute, target=predicted)",
            "monotonicity(baseline=adaptive_blur(first=1), sign=absolute, target=predicted, way=deletion)",
        ),
        "predicted",
        "The paper keeps images that are classified rightly with 60 % or more and whose blur falls below 1 %.",
    ),
    "chefer": Preset(
        "Chefer et al. 2021",
        (
            "positive_perturbation",
            "negative_perturbation",
            "segmentation(score=pixel_accuracy)",
            "segmentation(score=miou)",
            "segmentation(score=map)",
            "segmentation(score=f1, f1=rows)",
        ),
        "predicted",
        "The published code averages F1 over rows of pixels; segmentation(score=f1) is the true one.",
    ),
    "skipplus": Preset(
        "Mehri et al. 2024",
        (
            "insertion_accuracy(area=integral)",
            "deletion_accuracy(area=integral)",
            "insertion_aopc(area=integral, target=label)",
            "deletion_aopc(area=integral, target=label)",
            "lodds(area=integral, target=label)",
            "average_precision(enlarge=nearest)",
        ),
        "label",
        "Areas over shares of 0 to 0.9 (deletion) and 0.1 to 1 (insertion), not divided by the width.",
    ),
    "aha": Preset(
        "AHA 2025",
        (
            *_each("insertion(baseline={}, area=mean)", *_AHA),
            *_each("deletion(baseline={}, area=mean)", *_AHA),
            *_each("average_drop(baseline={})", *_AHA),
            *_each("increase_in_confidence(baseline={})", *_AHA),
            *_each("positive_perturbation(baseline={}, target=explained)", *_AHA),
            *_each("negative_perturbation(baseline={}, target=explained)", *_AHA),
        ),
        "predicted",
        "The paper averages the three baselines and explains the true class as well; its number of steps, its blur and "
        "the class whose accuracy counts are not told.",
    ),
    "var": Preset(
        "VAR 2025",
        (
            "region_attribution(kernel=11, sigma=2)",
            "region_iou(threshold=0, kernel=11)",
            "region_f1(threshold=0, kernel=11)",
            "aic(aggregate=mean)",
            "cascading_randomisation(similarity=spearman)",
        ),
        "label",
        "The blur's sigma and the threshold of IoU and F1 are not told in the paper.",
    ),
    "xrai": Preset(
        "Kapishnikov et al. 2019",
        ("aic(aggregate=median, sign=absolute)", "sic(aggregate=median, sign=absolute)"),
        "predicted",
        "For SIC, images below a confidence of 0.8 do not count, nor for both those that blurring does not change.",
    ),
}


def expand(metrics: str | Metric | Sequence[str | Metric]) -> list[Metric]:
    """Metrics from spec strings and names of presets, each once.

    Example:
        >>> [metric.spec for metric in expand(["rise", "sparseness"])]
        ['insertion', 'deletion', 'sparseness']
    """
    given = [metrics] if isinstance(metrics, str | Metric) else list(metrics)
    if not given:
        raise InputError("no metric was given; give at least one, or a preset such as 'rise'")
    found = [
        parse(spec)
        for entry in given
        for spec in (PRESETS[entry].metrics if isinstance(entry, str) and entry in PRESETS else (entry,))
    ]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Wanted:
    """What is to be measured, and what presets say of it besides.

    Attributes:
        metrics: Each once.
        explains: The class that the presets explain; None where there is no preset.
        presets: Their names.
        left_out: What of the presets cannot be measured, and why not.
    """

    metrics: tuple[Metric, ...]
    explains: Whose | None = None
    presets: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


LACKING: dict[Needs, str] = {"masks": "no masks or boxes were given", "labels": "no true classes were given"}


def wanted(
    metrics: str | Metric | Sequence[str | Metric], *, masks: bool, labels: bool, settled: bool = False
) -> Wanted:
    """What can be measured: all that was asked for by itself, and of presets what there is enough known for.

    Args:
        metrics: Specs, metrics and names of presets.
        masks: Whether it is known where the objects are.
        labels: Whether the true classes are known.
        settled: Whether it is said which class to explain, whatever presets have.

    Example:
        >>> found = wanted("skipplus", masks=False, labels=True)
        >>> found.explains, len(found.metrics), found.left_out
        ('label', 5, ('skipplus without average_precision(enlarge=nearest): no masks or boxes were given',))
    """
    given = [metrics] if isinstance(metrics, str | Metric) else list(metrics)
    named = [entry for entry in given if isinstance(entry, str) and entry in PRESETS]
    kinds = {PRESETS[name].explains: name for name in named}
    if len(kinds) > 1 and not settled:
        each = " and ".join(f"{name} explains the {_WORDS[whose]} class" for whose, name in kinds.items())
        raise InputError(f"{each}: say which target to explain, or evaluate one preset at a time")
    kept, dropped = [], []
    asked = expand([entry for entry in given if entry not in named]) if len(named) < len(given) else []
    for metric in expand(metrics):
        lacking = [need for need in lacks(metric, masks=masks, labels=labels) if metric not in asked]
        if lacking:
            owners = [name for name in named if metric in expand(name)]
            dropped.append(f"{owners[0]} without {metric.spec}: {LACKING[lacking[0]]}")
        else:
            kept.append(metric)
    told_below = "label" in kinds and not labels and not settled  # that the true classes are to be explained
    if not kept and not told_below:
        remedies = {"masks": f"{option('masks')} or {option('boxes')}", "labels": option("labels")}
        needs = dict.fromkeys(lacks(metric, masks=masks, labels=labels)[0] for metric in expand(metrics))
        raise InputError(
            f"nothing of {', '.join(named)} can be measured: {' and '.join(LACKING[need] for need in needs)}; "
            f"give {', or '.join(remedies[need] for need in needs)}"
        )
    return Wanted(tuple(kept), next(iter(kinds), None), tuple(named), tuple(dropped))


def refuse_unlabelled(presets: Sequence[str], *, masks: bool) -> None:
    """Say what to give where presets explain the true class, and it is not known.

    Args:
        presets: Their names.
        masks: Whether it is known where the objects are.
    """
    able = any(not lacks(metric, masks=masks, labels=False) for metric in expand(presets))
    without = f", or {option('target', 'predicted')}" if able else "; without it nothing of the preset can be measured"
    raise InputError(f"the preset {presets[0]} explains the true class; give {option('labels')}{without}")


_WORDS: dict[Whose, str] = {"label": "true", "predicted": "predicted", "explained": "explained"}


def lacks(metric: Metric, *, masks: bool, labels: bool) -> list[Needs]:
    """What a metric needs to know and is not told."""
    found: list[Needs] = []
    if "masks" in metric.needs and not masks:
        found.append("masks")
    if getattr(metric, "target", None) == "label" and not labels:
        found.append("labels")
    return found
