"""Which method to use: a short benchmark on a user's own model and pictures."""

import csv
import hashlib
import io
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vitrail.bench.protocol import Column, Part, Protocol
from vitrail.bench.recommend.verdict import FLOOR, INS_DEL, Recommendation, conclude, counted
from vitrail.bench.report.compare import Measured, measured
from vitrail.bench.report.gathering import gather
from vitrail.bench.store import Store
from vitrail.bench.stored import scores
from vitrail.bench.tables import perform
from vitrail.data import Dataset, Item, PictureFile, dataset
from vitrail.errors import InputError
from vitrail.events import Cancel, Observer
from vitrail.files import check_writable, legible, write_text
from vitrail.method import parse
from vitrail.model import Precision, View, load, sources_of

CANDIDATES = (
    "gradcam",
    "hirescam",
    "layercam",
    "ig(steps=20)",
    "smoothgrad(saliency)",
    "lrp",
    "rollout",
    "genatt",
    "legrad",
    "t_attr",
    "bt_h",
    "decompx",
    "skipplus(decompx)",
    "tis(masks=256)",
)
"""What is tried where no methods are named: up to some 60 passes an image, and TIS, which is dearer but often good."""

STEPS = 32
"""Points of the insertion and deletion curves: enough to order methods, at a seventh of RISE's cost."""

CHECKED = 4
"""Pictures in the randomisation check: a map that ignores the model's weights does so on every picture."""

CHUNK = 8
"""Pictures in a unit of work: small, so that the median time leaves out the first unit, which warms up."""

PICTURES, RANDOMISATION = "pictures", "randomisation"


def recommend(
    model: str,
    images: Sequence[str | Path],
    *,
    checkpoint: str | Path | None = None,
    methods: Sequence[str] = (),
    limit: int = 24,
    out: str | None = None,
    device: str | None = None,
    precision: Precision = "fp32",
    progress: bool = False,
    observers: Iterable[Observer] = (),
    cancel: Cancel | None = None,
    repair: bool = False,
    command: str | None = None,
) -> Recommendation:
    """Try methods on a model and pictures, and say which one to use.

    Args:
        model: A name for `vitrail.load`.
        images: One folder of pictures, or picture files.
        checkpoint: A file with the model's weights.
        methods: Specs to choose from; `CANDIDATES`, as far as the model serves them, by default.
        limit: So many pictures at most, evenly spread.
        out: A folder that keeps the run, so that it can be reported and gone on from.
        device: Where the model lives; the GPU by default if there is one.
        precision: Arithmetic of the model's passes.
        progress: Show progress bars.
        observers: Functions that are told of every event of the work, see `vitrail.events`.
        cancel: A token by which another thread can stop the work.
        repair: Make parts of the run again that are damaged; otherwise they are refused.
        command: How it was asked for, for the report.
    """
    for spec in methods:
        parse(spec)  # a typo should be told before a model is loaded
    files = _files(images, out, limit)
    view = load(model, None if checkpoint is None else Path(checkpoint), device=device)
    chosen, unavailable = candidates(view, methods)
    with tempfile.TemporaryDirectory() as scratch:
        place = scratch if out is None else out
        data = _table(files, Path(place)) if files else f"folder:{images[0]}"
        protocol = _protocol(view, model, checkpoint, data, chosen, limit, precision)
        store = perform(
            protocol,
            place,
            device=device,
            progress=progress,
            observers=observers,
            cancel=cancel,
            repair=repair,
            command=command,
        )
        return _read(protocol, store, view.name, unavailable)


def candidates(view: View, methods: Sequence[str] = ()) -> tuple[list[str], tuple[str, ...]]:
    """The specs of the methods to try, and of those that the model cannot serve.

    Args:
        view: The model.
        methods: Those that the user names: each must be served. The usual ones by default.
    """
    wanted = list(dict.fromkeys(parse(spec).spec for spec in methods or CANDIDATES))
    served, refused = [], []
    for spec in wanted:
        try:
            parse(spec).check(view)
        except InputError:
            if methods:
                raise
            refused.append(spec)
        else:
            served.append(spec)
    served = [spec for spec in served if spec != FLOOR]
    if not served:
        raise InputError(f"there is no method to choose besides {FLOOR}; name some, such as gradcam or 'ig(steps=20)'")
    return served, tuple(refused)


# ------------------------------------------------------------------------------------------------------ the benchmark


def _protocol(
    view: View,
    model: str,
    checkpoint: str | Path | None,
    data: str,
    methods: Sequence[str],
    limit: int,
    precision: Precision,
) -> Protocol:
    """Two parts: how faithful the maps are, and whether they are about the model at all."""
    step = -(-view.size[0] * view.size[1] // STEPS)
    insertion, deletion = f"insertion(step={step})", f"deletion(step={step})"
    columns = (
        Column("Insertion", ((insertion, 1.0),)),
        Column("Deletion", ((deletion, 1.0),)),
        Column(INS_DEL, ((insertion, 1.0), (deletion, -1.0))),
    )
    check = Column("Likeness", (("cascading_randomisation(steps=3)", 1.0),))

    def part(name: str, columns: tuple[Column, ...], limit: int) -> Part:
        return Part(
            name=name,
            model=model,
            checkpoint=None if checkpoint is None else str(checkpoint),
            data=data,
            methods={spec: spec for spec in [*methods, FLOOR]},
            columns=columns,
            limit=limit,
            chunk=CHUNK,
            precision=precision,
        )

    parts = (part(PICTURES, columns, limit), part(RANDOMISATION, (check,), min(limit, CHECKED)))
    return Protocol("recommend", f"Which method to use for {view.name}", "vitrail", parts)


def _files(images: Sequence[str | Path], out: str | None, limit: int) -> list[Path]:
    """The picture files; none where a single folder was given, which is a dataset as it is. Some can be read."""
    if len(images) == 1 and Path(images[0]).is_dir():
        dataset(f"folder:{images[0]}").limit(limit).check_readable()
        return []
    files = [Path(source) for source in sources_of([str(one) for one in images])]
    absent = next((file for file in files if not file.is_file()), None)
    if absent is not None:
        raise InputError(f"there is no picture {absent}; give a folder of pictures, or picture files")
    nameless = next((file for file in files if legible(str(file)) != str(file)), None)
    if nameless is not None:
        raise InputError(
            f"the name of {nameless} is not UTF-8, as the table of single pictures must be; give its folder"
        )
    if out is not None and "://" in out:
        raise InputError(f"single pictures need a run in a folder of this machine, but {out} was given")
    items = tuple(Item(str(file), PictureFile(file)) for file in dict.fromkeys(files))
    Dataset("the files given", items).limit(limit).check_readable()
    return files


def _table(files: Sequence[Path], place: Path) -> str:
    """A spec for pictures from here and there: a table of them, in the run's folder."""
    text = io.StringIO()
    csv.writer(text).writerows([["file"], *([str(file.resolve())] for file in files)])
    said = text.getvalue()
    # Other pictures get another table: a run that is there already must not find its own changed.
    table = place / f"pictures-{hashlib.sha256(said.encode()).hexdigest()[:8]}.csv"
    check_writable(place)
    write_text(table, said)
    return f"csv:{table}"


def _read(protocol: Protocol, store: Store, model: str, unavailable: tuple[str, ...]) -> Recommendation:
    section = gather(protocol, store).sections[0]
    lacking: dict[str, dict[str, int]] = {}
    for row in section.run:
        for why, count in row.failed.items():
            lacking.setdefault(why, {})[row.label] = count
    return conclude(
        model,
        _numbers(protocol.part(PICTURES), store),
        _numbers(protocol.part(RANDOMISATION), store),
        {row.spec: (row.seconds, row.forwards, row.backwards) for row in section.run},
        images=section.images,
        unavailable=unavailable,
        failed={why: _lack(who, len(section.run)) for why, who in lacking.items()},
    )


def _numbers(part: Part, store: Store) -> dict[str, Measured]:
    """Each method by the last column of a part."""
    found = scores(part.plan(), store.within(part.name))
    return {spec: measured(found, spec, part.columns[-1]) for spec in part.labels}


def _lack(counts: Mapping[str, int], methods: int) -> str:
    """Count, for each method, the pictures that it has no map of."""
    if len(counts) == methods:
        return f"Left out by all methods, {counted(max(counts.values()), 'picture')}"
    return ", ".join(f"{method} has no map of {counted(count, 'picture')}" for method, count in counts.items())
