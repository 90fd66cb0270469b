"""Run a protocol into a folder: its parts one after the other, each a run of its own."""

import difflib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from vitrail.bench.places import placed, require
from vitrail.bench.protocol import COMMAND, PROTOCOL, Column, Part, Protocol
from vitrail.bench.protocol_json import from_dict, to_dict
from vitrail.bench.runner import Engine, run
from vitrail.bench.store import Store
from vitrail.errors import InputError, Renamed
from vitrail.events import Cancel, Observer
from vitrail.files import json_bytes
from vitrail.method import parse as parse_method
from vitrail.metric import expand
from vitrail.metric import parse as parse_metric
from vitrail.spec import Configured


def perform(
    protocol: Protocol,
    out: str | Store,
    *,
    device: str | Sequence[str] | None = None,
    engine: Engine | None = None,
    progress: bool = False,
    observers: Iterable[Observer] = (),
    cancel: Cancel | None = None,
    repair: bool = False,
    command: str | None = None,
) -> Store:
    """Run all parts of a protocol, or what is left of them. What an earlier run of the folder had is kept.

    Methods of an earlier run that are not asked for now are left as they are, so that several runners can share a
    folder, each with some of the methods.
    Those of now get the columns of before as well.

    Args:
        protocol: What is measured.
        out: The folder, or a URL that fsspec knows.
        device: Where the models live; several work side by side.
        engine: What does the work; this process by default.
        progress: Show progress bars.
        observers: Functions that are told of every event of the work, see `vitrail.events`.
        cancel: A token by which another thread can stop the work; what is done by then stays.
        repair: Make parts again that are damaged; otherwise they are refused.
        command: How it was asked for, for the report.
    """
    protocol = placed(protocol)
    require(protocol)
    store = out if isinstance(out, Store) else Store(out)
    store.check_writable()
    before, known = store.noted(PROTOCOL), recorded(store)
    wanted = protocol.parts
    for part in wanted:
        part.plan()  # what no plan allows is told before anything is written
    if known is not None:
        if known.name != protocol.name:
            raise InputError(
                f"{store.place} holds a run of {known.name}, not of {protocol.name}; choose another folder"
            )
        protocol = joined(known, protocol)
    begun = partial(store.note, PROTOCOL, json_bytes(to_dict(protocol)).decode())
    try:
        for part in wanted:
            now = replace(protocol.part(part.name), methods=part.methods, ours=part.ours)
            run(
                now.plan(),
                store.within(part.name),
                device=device,
                engine=engine,
                progress=progress,
                observers=observers,
                cancel=cancel,
                repair=repair,
                begun=begun,
            )
    except InputError:
        if before is not None:
            store.note(PROTOCOL, before)  # what was refused is not what the folder holds
        raise
    if command is not None:
        said = (store.noted(COMMAND) or "").splitlines()
        store.note(COMMAND, "\n".join(dict.fromkeys([*said, command])) + "\n")
    return store


def recorded(store: Store) -> Protocol | None:
    """The protocol that a folder holds a run of; None where it holds none."""
    found = store.noted_mapping(PROTOCOL)
    try:
        return None if found is None else _respelled(from_dict(found))
    except InputError as error:
        raise InputError(f"{store.place}/{PROTOCOL} cannot be read ({error}); choose another folder") from error


def _respelled(protocol: Protocol) -> Protocol:
    """The same in the words of today: a run may be older than they are."""

    def method(spec: str) -> str:
        return _today(parse_method, spec)

    def column(one: Column) -> Column:
        terms = tuple((_today(parse_metric, spec), weight) for spec, weight in one.terms)
        named = [new for (old, _), (new, _) in zip(one.terms, terms) if old == one.name]
        return Column(named[0] if named else one.name, terms)

    parts = [
        replace(
            part,
            methods={label: method(spec) for label, spec in part.methods.items()},
            ours=tuple(map(method, part.ours)),
            columns=tuple(map(column, part.columns)),
        )
        for part in protocol.parts
    ]
    return replace(protocol, parts=tuple(parts))


def _today(read: Callable[[str], Configured], spec: str) -> str:
    """What a stored spec is now, without a warning; one that cannot be read stays, and is told of where it is used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Renamed)
        try:
            return read(spec).spec
        except InputError:
            return spec


def narrowed(
    protocol: Protocol, parts: Sequence[str] = (), methods: Sequence[str] = (), metrics: Sequence[str] = ()
) -> Protocol:
    """A protocol with only some parts, methods and columns; what it does not have is added.

    Args:
        protocol: The whole.
        parts: Names of parts; none for all.
        methods: The paper's names, or specs; none for all.
        metrics: Names of columns, or metrics' specs or presets; none for all.
    """
    chosen = [protocol.part(name) for name in parts] or list(protocol.parts)
    return replace(protocol, parts=tuple(_narrowed(part, methods, metrics) for part in chosen))


def _narrowed(part: Part, methods: Sequence[str], metrics: Sequence[str]) -> Part:
    if methods:
        specs = {parse_method(spec).spec: label for label, spec in part.methods.items()}
        kept, ours = {}, []
        for name in methods:
            if part.later.get(name, "").startswith("aha"):
                raise InputError(
                    f"the row {name} ({part.later[name]}) needs an explainer; add --explainer with a folder that "
                    "vitrail train wrote, or --explainer auto for the demo model"
                )
            spec = _known(name, part.methods, "row", partial(_spec_of, part, name))
            if spec in specs:
                kept[specs[spec]] = part.methods[specs[spec]]
            else:
                ours.append(spec)
        part = replace(part, methods=kept, ours=tuple(ours))
    if metrics:
        columns = {column.name: column for column in part.columns}
        wanted: list[Column] = []
        for name in metrics:
            if name in columns:
                wanted.append(columns[name])
            else:
                found = _known(name, columns, "column", partial(expand, [name]))
                wanted += [Column(metric.spec, ((metric.spec, 1.0),)) for metric in found]
        part = replace(part, columns=tuple(wanted))
    return part


def _spec_of(part: Part, name: str) -> str:
    """The spec of a row, by its name in the paper, or of any method."""
    return parse_method(part.methods.get(name, name)).spec


T = TypeVar("T")


def _known(name: str, names: Iterable[str], what: str, read: Callable[[], T]) -> T:
    """What a name stands for; where it cannot be read, and is like one of the protocol's, that is named."""
    try:
        return read()
    except InputError as error:
        plain = {own.casefold(): own for own in names}
        near = [plain[one] for one in difflib.get_close_matches(name.casefold(), plain, n=2, cutoff=0.5)]
        if not near or "(" in name:
            raise
        raise InputError(f"the protocol has no {what} called {name!r}; did you mean {' or '.join(near)}?") from error


def joined(known: Protocol, wanted: Protocol) -> Protocol:
    """What was asked for before and what is asked for now; where both say something, now counts."""
    parts = {part.name: part for part in known.parts}
    for part in wanted.parts:
        before = parts.get(part.name)
        if before is None:
            parts[part.name] = part
            continue
        columns = {column.name: column for column in (*before.columns, *part.columns)}
        parts[part.name] = replace(
            part,
            methods={**before.methods, **part.methods},
            ours=tuple(dict.fromkeys((*before.ours, *part.ours))),
            columns=tuple(columns.values()),
        )
    return replace(wanted, parts=tuple(parts.values()))
