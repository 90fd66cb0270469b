"""What the papers' own code does, row by row, written down by hand: protocols and presets are read against it.

A row says which method or metric stands under a label, and those of its parameters that the authors' code (or, where
there is none, the paper) fixes; a parameter of ours at its default is named too, so that no default may move away from
under a row. Where ours is knowingly something else, ``said`` is what the protocol's note must say of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Either(tuple[Any, ...]):
    """Values that mean the same."""


LAST = Either((11, -1, "last"))
FOURTH = Either((3, None))
SEVENTH = Either((6, None))
FIRST = Either((0, "first"))


@dataclass(frozen=True)
class Row:
    """A method or a metric: its id, the parameters that are fixed, what its note must say.

    A parameter may itself be a row (the base of a composition, the baseline of a metric) or `Either` of some values.
    """

    id: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


def row(name: str, said: str = "", /, **fixed: Any) -> Row:
    return Row(name, fixed, said)


PIXELS = "the gradient of the last attention"
TRUE = {"gradient": "true"}

# --------------------------------------------------------------------------------------------------------------- TIS
# aenglebert/Transformer_Input_Sampling: config/method/*.yaml, comparison_methods/*.py, tis/tis.py, config/generate.yaml

TIS = row("tis", masks=1024, keep=0.5, layers=None, ablation=False, normalise=True)
ROLLOUT = row("rollout", "its rollout, which drops nine tenths of the attention, is not ours", start=FIRST)
OF_TIS = {
    "TIS": TIS,
    "ViT-CX": row("vit_cx", threshold=0.1, masks=None, noise=0.1, normalise=False),
    "TAM": row("t_attn", start=FIRST, steps=20, last_twice=False),
    "Chefer1": row("t_attr", start=FIRST, normalise=False),
    "Chefer2": row("genatt", start=FIRST, heads="clamp_mean", **TRUE),
    "Att. Rollout": ROLLOUT,
    "Attention Rollout": ROLLOUT,
    "BT H": row("bt_h", start=FIRST, steps=20),
    "BT T": row("bt_t", start=FIRST, steps=20),
    "RISE": row("rise", masks=4000, grid=8, keep=0.1, score="logit", baseline=row("zero_norm")),
    "IntegratedGrad": row("ig", steps=50, **TRUE),
    "Integrated Gradient": row("ig", steps=50, **TRUE),
    "SmoothGrad": row("smoothgrad", base=row("saliency", reduce="abs", **TRUE), samples=50, noise=0.22),
}
BLUR = row("gaussian_blur", kernel=11, sigma=5)
NOISE = row("uniform_noise", space="normalised")
MEAN = row("image_mean", channels="together")
GREY = row("zero_norm")


def steps(name: str, baseline: Row) -> Row:
    """224 steps, the start left out of the mean, probabilities of the class explained."""
    return row(
        name,
        baseline=baseline,
        step=None,
        area="mean",
        sign="signed",
        target="explained",
        score="probability",
        monotone=False,
    )


SENSITIVITY = row("max_sensitivity", samples=10, radius=0.02, draws="new")
SPARSENESS = row("sparseness", values="shifted", at="picture")
POINTING = row("pointing_game", below=0.5, tolerance=0)
ENERGY = row("energy_pointing_game", below=0.5, sign="absolute")

# --------------------------------------------------------------------------------------------------------------- MDA
# chasewalker26/MDA-Metric-Driven-Attributions-for-ViT: MDATest.py, MASTestFunctions.py, pertubation_eval_from_hdf5.py

BI_ATTN = Either(("auto", row("bt_h", start=FOURTH)))
"""``auto`` is ``bt_h`` on every model of these tables: tests/method/mda/test_mda.py."""
WIDE = row("adaptive_blur", first=31)
ANY = row("adaptive_blur", first=1)

OF_MDA = {
    "GC": row("genatt", start=LAST, heads="mean_clamp", **TRUE),
    "IG": row("t_attn", "integrated gradient of the last attention", carried=False, steps=20),
    "ViT-CX": row("vit_cx", threshold=0.1, masks=None, noise=0.1, normalise=True),
    "T-Attn": row("t_attn", start=FIRST, steps=20, last_twice=True),
    "T-Attr": row("t_attr", start=FIRST, normalise=True),
    "Bi-Attn": row("bt_h", start=FOURTH, steps=20),
    "TIS": TIS,
    "MDA": row("mda", tau=0.9, kappa=0.005, gamma=0, seed=BI_ATTN, blank=GREY),
}
RANKS = row("mda", "MDA here is the map of ranks", kappa=0, gamma=1, seed=BI_ATTN, baseline=ANY)
FROM_ONE = row("mda", tau=0.9, kappa=0.005, gamma=0, seed=BI_ATTN, baseline=ANY)
SEEDS = {
    "Bi-Attn seed": row("mda", seed=OF_MDA["Bi-Attn"]),
    "T-Attn seed": row("mda", seed=OF_MDA["T-Attn"]),
    "GC seed": row("mda", seed=OF_MDA["GC"]),
    "T-Attr seed": row("mda", seed=OF_MDA["T-Attr"]),
    "TIS seed": row("mda", seed=TIS),
    "ViT-CX seed": row("mda", seed=OF_MDA["ViT-CX"]),
    "IG seed": row("mda", seed=OF_MDA["IG"]),
    "No seed": row("mda", seed=None),
}


def petsiuk(name: str, baseline: Row) -> Row:
    """Absolute maps, the predicted class, normalised between the ends and monotone, trapezoid over 224 steps."""
    return row(name, baseline=baseline, step=None, area="trapezoid", sign="absolute", target="predicted", monotone=True)


def mas(name: str, baseline: Row) -> Row:
    """The same, clipped and stretched by that code."""
    return row(
        name, baseline=baseline, step=None, area="trapezoid", sign="absolute", target="predicted", compat="authors"
    )


def spearman(way: str) -> Row:
    return row("monotonicity", baseline=ANY, step=None, sign="absolute", target="predicted", way=way)


def chefer(name: str) -> Row:
    """True black, a tenth to nine tenths, accuracy against the true class, trapezoid divided by the width."""
    return row(
        name, baseline=row("black_pixel"), target="label", area="trapezoid", shares=[n / 10 for n in range(1, 10)]
    )


INS, DEL = petsiuk("insertion", WIDE), petsiuk("deletion", GREY)
OF_MAS = {
    "Ins": INS,
    "Del": DEL,
    "MAS Ins": mas("mas_insertion", WIDE),
    "MAS Del": mas("mas_deletion", GREY),
}

# ---------------------------------------------------------------------------------------------------------- SkipPLUS
# the paper, and the authors' code: maps keep their sign and are added up as they are, true class, patches removed

ALTI = row("alti", reference="block")
DECOMPX = row("decompx", start=FIRST, bias="none", activation="zo")
MIDDLE = Either((None, "middle"))
OF_SKIPPLUS = {
    "ALTI o Rollout": row("rollout", base=ALTI, start=FIRST),
    "ALTI o PLUS": row("plus", base=ALTI),
    "ALTI o SkipPLUS": row("skipplus", base=ALTI, start=MIDDLE, compat="paper"),
    "GlobEnc o Rollout": row("rollout", base=row("globenc"), start=FIRST),
    "GlobEnc o PLUS": row("plus", base=row("globenc")),
    "GlobEnc o SkipPLUS": row("skipplus", base=row("globenc"), start=MIDDLE),
    "DecompX": DECOMPX,
    "DecompX o PLUS": row("plus", base=DECOMPX),
    "DecompX o SkipPLUS": row("skipplus", base=DECOMPX, start=MIDDLE, compat="paper"),
    "AttIxG o PLUS (AttCAT)": row("attcat", compat="paper", **TRUE),
    "AttIxG o SkipPLUS": row("skipplus", base=row("att_ixg", compat="paper", **TRUE), start=MIDDLE),
    "IxG o SkipPLUS": row("skipplus", base=row("ixg", **TRUE), start=MIDDLE),
    "IxG o PLUS (CAT)": row("cat", **TRUE),
    "FullGrad+ o SkipPLUS": row("skipplus", base=row("fullgrad_plus", **TRUE), start=MIDDLE),
    "FullGrad+ o PLUS": row("plus", base=row("fullgrad_plus", **TRUE)),
    "GenAtt": row("genatt", start=FIRST, heads="clamp_mean", **TRUE),
    "GenAtt o PLUS (GradSAM)": row("gradsam", **TRUE),
    "TransAtt": row("t_attr", start=FIRST, normalise=False),
    "AttCAM": row("attcam", layer=Either((-1, "last")), relu=False, **TRUE),
    "XGradCAM+ o SkipPLUS": row("skipplus", base=row("xgradcam+", **TRUE), start=MIDDLE),
    "GradCAM": row("skipplus", base=row("gradcam", **TRUE), start=LAST),
    "RawAttn": row("raw_attention", layer=Either((-1, "last"))),
    "Random": row("random"),
}


def masked(name: str, **fixed: Any) -> Row:
    return row(name, area="integral", target="label", **fixed)


OF_MASKING = {
    "Ins. accuracy": masked("insertion_accuracy"),
    "Del. accuracy": masked("deletion_accuracy"),
    "Ins. AOPC": masked("insertion_aopc"),
    "Del. AOPC": masked("deletion_aopc"),
    "LOdds": masked("lodds"),
    "AP": row("average_precision", enlarge="nearest"),
}

# --------------------------------------------------------------------------------------------------------------- VAR
# the paper alone: no normalisation before the softmax, temperatures 1, 5, 100, LRP from the logit (Bach et al.)

SUM = {"reduce": "sum"}
BASES = {
    "GradCam": row("gradcam", **TRUE),
    "GBP": row("gbp", **SUM),
    "Guide-GC": row("guided_gradcam", **SUM),
    "IxG": row("ixg", **TRUE),
    "IG": row("ig", **TRUE),
    "LRP": row("lrp", start="logit", entry="plain"),
    "Bi-attn": row("bt_h", start=FOURTH, steps=20),
    "InFlow": row("inflow"),
    "Grad-Rollout": row("grad_rollout", compat="paper", **TRUE),
    "Grad-R1": row("grad_rollout", compat="paper", **TRUE),
    "T-attn": row("t_attn", last_twice=False, steps=20),
    "T-LRP": row("t_attr", start=FIRST),
    "Gradient": row("saliency", **TRUE),
}


def with_var(classes: str) -> dict[str, Row]:
    """Each base alone, and compared with these classes."""
    found = dict(BASES)
    for label, base in BASES.items():
        found[f"{label} + VAR"] = row(
            "var", base=base, classes=classes, temperatures=[1.0, 5.0, 100.0], normalise="none"
        )
    return found


OF_REGIONS = {"RA": row("region_attribution", kernel=11)}

# --------------------------------------------------------------------------------------------------------------- AHA
# the paper alone: three fills, the class explained; its other methods as in MDA's code

FILLS = (row("black_pixel"), row("dataset_mean"), row("rise_blur", kernel=11, sigma=5))
OF_AHA = {
    "Grad-CAM": OF_MDA["GC"],
    "IG": row("ig", PIXELS),
    "Trans-Att.": OF_MDA["T-Attn"],
    "Bi-Att.": OF_MDA["Bi-Attn"],
    "TIS": row("tis", masks=1024, keep=0.5),
    "ViT-CX": row("vit_cx", threshold=0.1, noise=0.1),
    "MDA": OF_MDA["MDA"],
    "LeGrad": row("legrad", layers=None),
    "ScoreCAM": row("scorecam", relu=True),
    "AblationCAM": row("ablationcam", relu=True),
    "GradCAM++": row("gradcam++", relu=True),
    "HiResCAM": row("hirescam", relu=True),
    "GradCAM": row("gradcam", relu=True),
}
OF_AHA_BY_MDA = OF_AHA | {"IG": OF_MDA["IG"], "ViT-CX": OF_MDA["ViT-CX"], "TIS": TIS}
"""Their numbers are those of MDA's table 1."""
MEANS = {
    "Deletion": [steps("deletion", fill) for fill in FILLS],
    "Insertion": [steps("insertion", fill) for fill in FILLS],
    "Positive": [row("positive_perturbation", baseline=fill, target="explained") for fill in FILLS],
    "Negative": [row("negative_perturbation", baseline=fill, target="explained") for fill in FILLS],
    "ADP": [row("average_drop", baseline=fill, target="explained") for fill in FILLS],
    "PIC": [row("increase_in_confidence", baseline=fill, target="explained") for fill in FILLS],
}
FREE = {"step"}
"""What AHA's paper does not tell of insertion and deletion."""

# --------------------------------------------------------------------------------------------------------- protocols


@dataclass(frozen=True)
class Table:
    """What a protocol must hold: methods and columns by their labels, the class explained, the filter.

    Attributes:
        methods: Label -> row. Every method of the paper must be among them.
        columns: Name -> row, or rows of a mean. Columns that are differences of others need none.
        explains: The class, or None where the parts differ.
        filter: Which pictures take part, in every part that is not on other data.
        swept: Rows of a sweep: the line's name -> row.
    """

    methods: Mapping[str, Row]
    columns: Mapping[str, Row | list[Row]]
    explains: str | None = "predicted"
    filter: Mapping[str, Any] = field(default_factory=dict)
    swept: Mapping[str, Row] = field(default_factory=dict)


FIVE = {"correct": True, "confidence": 0.6, "blurs": True, "per_class": 5}
ONE = FIVE | {"per_class": 1}
FOUR_FILLS = {"Mean": MEAN, "Blur": BLUR, "Black": GREY, "Rand": NOISE}
TIS_COLUMNS = {
    f"{short} {name}": steps(kind, fill)
    for short, kind in (("Ins", "insertion"), ("Del", "deletion"))
    for name, fill in FOUR_FILLS.items()
}
TIS_MEANS: dict[str, Row | list[Row]] = {
    name: [steps(name.lower(), fill) for fill in (MEAN, BLUR, GREY, NOISE)] for name in ("Insertion", "Deletion")
}
ABLATED = {
    "MDA": OF_MDA["MDA"],
    "MDA Insertion": row("mda", tau=1, seed=BI_ATTN),
    "MDA Deletion": row("mda", tau=0, seed=BI_ATTN, blank=GREY),
}
FLOOR = {
    "Max sensitivity": SENSITIVITY,
    "Same draws": row("max_sensitivity", samples=10, radius=0.02, draws="same"),
    "Floor": row("noise_floor", samples=10),
}
AIC = row("aic", aggregate="mean", sign="signed")
SWEPT = row("mda", seed=BI_ATTN)

TABLES: dict[str, Table] = {
    "tis/table1": Table(OF_TIS, TIS_COLUMNS, "label"),
    "tis/table2": Table(OF_TIS, TIS_COLUMNS, "label"),
    "tis/table3": Table(OF_TIS, {"Pointing game": POINTING, "Energy": ENERGY}, "label"),
    "tis/table4": Table(OF_TIS, FLOOR, "label"),
    "tis/sparseness": Table(OF_TIS, {"Sparseness": SPARSENESS}, "label"),
    "tis/keep": Table({}, TIS_MEANS, "label", swept={"TIS": row("tis", masks=1024, normalise=True)}),
    "tis/masks": Table({}, TIS_MEANS, "label", swept={"TIS": row("tis", keep=0.5, normalise=True)}),
    **{f"mda/table{n}": Table(OF_MDA, OF_MAS, filter=FIVE) for n in (1, 4, 5)},
    **{f"mda/table{n}": Table(ABLATED, OF_MAS, filter=ONE) for n in (7, 8, 9)},
    **{f"mda/table{n}": Table({}, OF_MAS, filter=ONE, swept={"MDA": SWEPT}) for n in (11, 12, 13)},
    "mda/table2": Table(
        OF_MDA | {"MDA": RANKS},
        {
            "MAP": row("segmentation", score="map"),
            "IoU": row("segmentation", score="miou"),
            "F1": row("segmentation", score="f1", f1="rows"),
        },
        filter={"confidence": 0.1, "blurs": True},
    ),
    "mda/table3": Table(
        OF_MDA | {"MDA": FROM_ONE}, {way: chefer(f"{way.lower()}_perturbation") for way in ("Positive", "Negative")}
    ),
    "mda/table6": Table(
        OF_MDA | {"MDA": FROM_ONE}, {"Monotonicity": spearman("insertion"), "Turned": spearman("deletion")}, filter=ONE
    ),
    "mda/figure9": Table({}, OF_MAS, filter=ONE, swept={"MDA": row("mda", gamma=1)}),
    "mda/seed": Table(SEEDS, OF_MAS, filter=ONE),
    "mda/tau": Table(ABLATED, OF_MAS, filter=ONE, swept={"MDA": SWEPT}),
    **{f"skipplus/figure{n}": Table(OF_SKIPPLUS, OF_MASKING, "label") for n in (3, 4)},
    "skipplus/figure7": Table(
        {},
        OF_MASKING,
        "label",
        swept={
            "DecompX": row("skipplus", base=DECOMPX),
            "IxG": row("skipplus", base=row("ixg", **TRUE)),
            "GenAtt": row("skipplus", base=row("genatt", heads="clamp_mean")),
            "GlobEnc": row("skipplus", base=row("globenc")),
            "ALTI": row("skipplus", base=ALTI),
        },
    ),
    "var/table1": Table(with_var("present"), OF_REGIONS, "label"),
    "var/table2": Table(with_var("top5+worst"), {"AIC": AIC}),
    "var/figure6": Table(
        with_var("top5+worst"), {"Spearman": row("cascading_randomisation", similarity="spearman", sign="absolute")}
    ),
    **{f"aha/table{n}": Table(OF_AHA, MEANS, None) for n in (1, 2, 3)},
    "aha/table4": Table(OF_AHA_BY_MDA, {"Insertion": INS, "Deletion": DEL}, filter=FIVE),
    "aha/refine": Table({}, {key: MEANS[key] for key in ("Deletion", "Insertion", "Positive", "Negative")}, None),
}

OWN = {"scenes", "aha/scenes"}
"""Protocols that reproduce nobody's table."""

# ----------------------------------------------------------------------------------------------------------- presets

RISE_BLUR = row("rise_blur", kernel=11, sigma=5)


def rise(name: str, baseline: Row) -> Row:
    return row(name, baseline=baseline, step=None, area="trapezoid", sign="signed", target="explained", monotone=False)


PRESETS: dict[str, tuple[str, list[Row]]] = {
    "rise": ("predicted", [rise("insertion", RISE_BLUR), rise("deletion", GREY)]),
    "tis": (
        "label",
        [
            *(steps("insertion", fill) for fill in (BLUR, NOISE, MEAN, GREY)),
            *(steps("deletion", fill) for fill in (BLUR, NOISE, MEAN, GREY)),
            POINTING,
            ENERGY,
            SENSITIVITY,
            row("noise_floor", samples=10),
            SPARSENESS,
        ],
    ),
    "mda": (
        "predicted",
        [
            *OF_MAS.values(),
            chefer("positive_perturbation"),
            chefer("negative_perturbation"),
            spearman("insertion"),
            spearman("deletion"),
        ],
    ),
    "chefer": (
        "predicted",
        [
            chefer("positive_perturbation"),
            chefer("negative_perturbation"),
            row("segmentation", score="pixel_accuracy"),
            row("segmentation", score="miou"),
            row("segmentation", score="map"),
            row("segmentation", score="f1", f1="rows"),
        ],
    ),
    "skipplus": ("label", list(OF_MASKING.values())),
    "aha": (
        "predicted",
        [one for key in ("Insertion", "Deletion", "ADP", "PIC", "Positive", "Negative") for one in MEANS[key]],
    ),
    "var": (
        "label",
        [
            row("region_attribution", kernel=11),
            row("region_iou", threshold=0),
            row("region_f1", threshold=0),
            AIC,
            row("cascading_randomisation", similarity="spearman"),
        ],
    ),
    "xrai": ("predicted", [row(name, aggregate="median", sign="absolute") for name in ("aic", "sic")]),
}
