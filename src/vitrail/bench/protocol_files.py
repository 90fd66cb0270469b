"""Protocols from YAML files, the papers' own or a user's."""

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args

import yaml

from vitrail.bench.chunk import Explains
from vitrail.bench.filter import Filter
from vitrail.bench.protocol import Column, Part, Protocol, Sweep
from vitrail.bench.protocol_json import to_dict
from vitrail.errors import InputError
from vitrail.method import METHODS
from vitrail.method import parse as parse_method
from vitrail.metric import expand
from vitrail.metric import parse as parse_metric
from vitrail.model import Precision
from vitrail.registry import Registry

FOLDER = Path(__file__).parent / "papers"
"""The papers' tables and figures, a file each."""


def _enter(folder: Path, prefix: str = "") -> None:
    for file in folder.rglob("*.yaml"):
        PROTOCOLS.enter(prefix + file.relative_to(folder).with_suffix("").as_posix(), file)


def _adopt(name: str, package: ModuleType) -> None:
    for folder in package.__path__:
        _enter(Path(folder), f"{name}/")


PROTOCOLS: Registry[Path] = Registry(
    "protocol",
    "vitrail.protocols",
    adopt=_adopt,
    tell=lambda name, _: to_dict(read_protocol(name)),
)
"""The files of protocols by name. A plug-in gives a package; the YAML files in its folder are NAME/FILE."""

_enter(FOLDER)

SUFFIXES = (".yaml", ".yml")

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, where PyYAML was built with it

TEXT, WHOLE, NUMBER, TRUTH = "text", "a whole number of 1 or more", "a number", "true or false"

# The keys of a file: those of the whole, those of a part that are taken as they are, and those that become something.
HEAD = {"title": TEXT, "paper": TEXT, "note": TEXT}
PLAIN = {"model": TEXT, "data": TEXT, "checkpoint": TEXT, "limit": WHOLE, "chunk": WHOLE, "compiled": TRUTH}
CHOICES = {"explains": get_args(Explains), "precision": get_args(Precision)}
BUILT = ("filter", "methods", "ours", "later", "sweep", "columns", "published", "size")
SHARES = ("confidence", "recognised", "area")
FILTER = {"correct": TRUTH, "blurs": TRUTH, "per_class": WHOLE} | dict.fromkeys(SHARES, NUMBER)

T = TypeVar("T")


def protocols(pattern: str = "*") -> list[str]:
    """The names of the protocols that come with vitrail, or of those that match a pattern such as ``mda/*``.

    Example:
        >>> protocols("tis/table*")
        ['tis/table1', 'tis/table2', 'tis/table3', 'tis/table4']
    """
    return sorted(
        PROTOCOLS.names(pattern),
        key=lambda name: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)],
    )


def read_protocol(name: str | Path, *, explainer: str | None = None) -> Protocol:
    """A protocol that comes with vitrail, or one of a user's own.

    Args:
        name: One of `protocols`, or the path of a YAML file. See docs/protocols.md for what stands in it.
        explainer: The explainer of all rows of AHA; without one they are left out.

    Example:
        >>> read_protocol("mda/table5").parts[0].methods["MDA"]
        'mda'
    """
    text = str(name)
    if text.endswith(SUFFIXES):
        path = Path(text).expanduser()
        if not path.is_file():
            raise InputError(f"there is no file {text}; give a protocol's file, or a name of 'vitrail protocols'")
        return _protocol(path.stem, _explained_by(explainer, _yaml(path, text)), text)
    if text not in PROTOCOLS:
        raise InputError(f"there is no protocol called {text!r}; {_hint(text)}")
    name = PROTOCOLS.current(text)
    return _protocol(name, _explained_by(explainer, _yaml(PROTOCOLS[name], name)), name)


def _hint(name: str) -> str:
    """What may have been meant: a name like it, or one that ends like it."""
    names = protocols()
    same = [one for one in names if name and one.rpartition("/")[2] == name.rpartition("/")[2]]
    near = same[:3] or difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "see 'vitrail protocols', or give the path of a .yaml file"


# -------------------------------------------------------------------------------------------------------- a YAML file


def _yaml(path: Path, where: str) -> dict[str, Any]:
    """What stands in a file: a mapping, with no key given twice."""
    try:
        loader = LOADER(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        _refuse_twice(node, where)
        given = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        raise InputError(f"{where} is not YAML: {error.problem}{line}; correct it there") from error
    except (OSError, RecursionError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{where} cannot be read ({error}); give a YAML file in UTF-8") from error
    return _mapping(given, where)


def _refuse_twice(node: Any, where: str) -> None:
    """YAML takes the last of two equal keys, and says nothing."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key.value, str) and key.value in seen:
                line = key.start_mark.line + 1
                raise InputError(f"{where} gives {key.value!r} twice, the second time in line {line}; leave one out")
            seen.add(str(key.value))
            _refuse_twice(value, where)


def _explained_by(explainer: str | None, given: Any) -> Any:
    """What stands in a file, with an explainer in every row of AHA that names none, or the one of vitrail's own."""
    if isinstance(given, dict):
        return {key: _explained_by(explainer, value) for key, value in given.items()}
    return with_explainer(given, explainer) if isinstance(given, str) else given


def with_explainer(spec: str, explainer: str | None) -> str:
    """The spec of a row of AHA with this explainer, where it names none or vitrail's own; any other spec as it is."""
    name, _, inside = spec.strip().partition("(")
    if explainer is None or name.strip() != "aha":
        return spec
    inside = re.sub(r"explainer=auto\s*,?", "", inside.removesuffix(")")).strip(" ,")
    named = "explainer=" in inside or inside.startswith(("'", '"'))
    return f"aha({', '.join(word for word in ('' if named else f'explainer={explainer!r}', inside) if word)})"


def _mapping(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"{where} must be a mapping from names to values, but {given!r} was given")
    for key in given:
        if not isinstance(key, str):
            raise InputError(f"{where}: YAML does not read the name {key!r} as text; put it in quotes")
    return given


def _refuse_unknown(given: Iterable[str], known: Collection[str], what: str, where: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise InputError(f"{where}: there is no {what} called {key!r}; {hint}")


def _plain(given: Mapping[str, Any], wanted: Mapping[str, str], where: str) -> dict[str, Any]:
    """The values that need no work, once each is what it must be."""
    fits: dict[str, Callable[[Any], bool]] = {
        TEXT: lambda value: isinstance(value, str) and bool(value.strip()),
        WHOLE: lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
        NUMBER: lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
        TRUTH: lambda value: isinstance(value, bool),
    }
    found = {key: given[key] for key in wanted if key in given}
    for key, value in found.items():
        if not fits[wanted[key]](value):
            raise InputError(f"{where}: {key} must be {wanted[key]}, but {value!r} was given")
    return {key: value.strip() if isinstance(value, str) else value for key, value in found.items()}


def _told(where: str, build: Callable[[], T]) -> T:
    """What can be built, or where it went wrong."""
    try:
        return build()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


# -------------------------------------------------------------------------------------------------- a protocol's parts


def _protocol(name: str, given: dict[str, Any], where: str) -> Protocol:
    inside = (*PLAIN, *CHOICES, *BUILT)
    _refuse_unknown(given, (*HEAD, "parts", *inside), "key", where)
    head = _plain(given, HEAD, where)
    if "title" not in head:
        raise InputError(f"{where} has no title; say in a line what it shows")
    shared = {key: value for key, value in given.items() if key in inside}
    parts = []
    for part, own in _mapping(given.get("parts", {"main": {}}), f"{where}: parts").items():
        place = where if "parts" not in given else f"{where}, part {part}"
        if not re.fullmatch(r"[\w-]+", part, re.ASCII):
            raise InputError(f"{where}: a part's name has letters, digits, - and _ only, but {part!r} was given")
        own = _mapping({} if own is None else own, place)
        _refuse_unknown(own, inside, "key", place)
        parts.append(_part(part, {key: value for key, value in (shared | own).items() if value is not None}, place))
    if not parts:
        raise InputError(f"{where} has no parts; give one, or leave the key out")
    return Protocol(name, head["title"], head.get("paper", ""), tuple(parts), head.get("note", ""))


def _part(name: str, given: dict[str, Any], where: str) -> Part:
    for key in ("model", "data", "columns"):
        if key not in given:
            raise InputError(f"{where} does not say which {key}; add the key {key!r}")
    for key, options in CHOICES.items():
        if key in given and given[key] not in options:
            raise InputError(f"{where}: {key} must be {' or '.join(options)}, but {given[key]!r} was given")
    columns = _columns(given["columns"], where)
    methods = _methods(given.get("methods", {}), where)
    arrived, later = _late(given.get("later", {}), where)
    _refuse_same(methods, arrived, where)
    methods |= arrived
    sweep = None
    if "sweep" in given:
        swept, swept_later, sweep = _swept(given["sweep"], where)
        _refuse_same(methods, swept, where)
        methods, later = methods | swept, later | swept_later
    ours = tuple(_methods(given.get("ours", []), where).values())
    if not methods and not ours:
        raise InputError(f"{where} has no methods; add the key 'methods', or 'ours'")
    published, words = _published(given.get("published", {}), methods | later, [one.name for one in columns], where)
    return Part(
        name=name,
        methods=methods,
        columns=columns,
        ours=ours,
        later=later,
        filter=_filter(given.get("filter", {}), where),
        published=published,
        published_for=words,
        sweep=sweep,
        size=_size(given.get("size"), where),
        **_plain(given, PLAIN, where),
        **{key: given[key] for key in CHOICES if key in given},
    )


def _exists(spec: str) -> bool:
    """Whether there is such a method. One that is not there yet is no mistake; parameters that it lacks are.

    AHA without an explainer is not there either: none comes with vitrail for the papers' models.
    """
    name = spec.partition("(")[0].strip()
    return name in METHODS and not (name == "aha" and "explainer" not in spec)


def _methods(given: Any, where: str, *, absent: bool = False) -> dict[str, str]:
    """What each method is called -> its spec as a run has it, from a mapping or a list of specs.

    Args:
        given: What the file says.
        where: The file, and the part.
        absent: Whether methods may be missing in vitrail.
    """
    if isinstance(given, list):
        given = {str(spec): spec for spec in given}
    found: dict[str, str] = {}
    for label, spec in _mapping(given, f"{where}: methods").items():
        if not isinstance(spec, str):
            raise InputError(f"{where}: the method {label!r} must be a spec such as 'ig(steps=20)', not {spec!r}")
        wait = absent and not _exists(spec)
        one = spec if wait else _told(f"{where}, method {label!r}", partial(parse_method, spec)).spec
        _refuse_same(found, {label: one}, where)
        found[label] = one
    return found


def _late(given: Any, where: str) -> tuple[dict[str, str], dict[str, str]]:
    """What each method is called -> its spec, of those that are there by now, and of those that are not."""
    found = _methods(given, where, absent=True)
    # As they were written: a spec as a run has it leaves out what is the default, such as explainer=auto.
    written = {str(spec): spec for spec in given} if isinstance(given, list) else given
    arrived = {label: spec for label, spec in found.items() if _exists(written[label])}
    return arrived, {label: spec for label, spec in found.items() if label not in arrived}


def _refuse_same(methods: Mapping[str, str], more: Mapping[str, str], where: str) -> None:
    """A method has one row: two names for one would lose one of them."""
    names = {spec: label for label, spec in methods.items()}
    for label, spec in more.items():
        if spec in names or label in methods:
            raise InputError(f"{where}: the method {label!r} is there already, as {names.get(spec, label)!r}; drop one")


def _swept(given: Any, where: str) -> tuple[dict[str, str], dict[str, str], Sweep | None]:
    """Methods, those that are not there yet, and their places, from specs with a gap for each value of a parameter."""
    given = _mapping(given, f"{where}: sweep")
    _refuse_unknown(given, ("axis", "values", "methods", "later"), "key of a sweep", where)
    axis, values = given.get("axis"), given.get("values")
    if not isinstance(axis, str) or not isinstance(values, list) or not values:
        raise InputError(f"{where}: a sweep needs an axis and a list of values, but {given!r} was given")
    found: dict[str, dict[str, str]] = {"methods": {}, "later": {}}
    at = {}
    for key, specs in found.items():
        for line, spec in _mapping(given.get(key, {}), f"{where}: the sweep's {key}").items():
            if not isinstance(spec, str) or spec.count("{}") != 1:
                raise InputError(f"{where}: the sweep's {line!r} must have one {{}} for the value, not {spec!r}")
            for value in values:
                _plain({axis: value}, {axis: NUMBER}, where)
                label = f"{line}, {axis}={value}"
                specs[label], at[label] = spec.replace("{}", str(value)), (line, float(value))
    methods = _methods(found["methods"], where)
    arrived, later = _late(found["later"], where)
    _refuse_same(methods, arrived, where)
    methods |= arrived
    run = {label: place for label, place in at.items() if label in methods}
    return methods, later, Sweep(axis, run) if run else None


def _columns(given: Any, where: str) -> tuple[Column, ...]:
    """Columns from a mapping, or from a list of metrics and presets."""
    if isinstance(given, list):
        metrics = _told(f"{where}, columns", lambda: expand(given))
        given = {metric.spec: metric.spec for metric in metrics}
    found: dict[str, Column] = {}
    for name, value in _mapping(given, f"{where}: columns").items():
        place = f"{where}, column {name!r}"
        parts, weights = _sum(value, place)
        terms: dict[str, float] = {}
        for part, weight in zip(parts, weights):
            for spec, inner in found[part].terms if part in found else ((_metric(part, place), 1.0),):
                terms[spec] = terms.get(spec, 0.0) + weight * inner
        found[name] = Column(name, tuple(terms.items()))
    if not found:
        raise InputError(f"{where} has no columns; give at least one metric")
    return tuple(found.values())


def _sum(value: Any, where: str) -> tuple[list[str], list[float]]:
    """What a column is made of, with weights: a metric, the difference of two things, or the mean of several."""
    if isinstance(value, str):
        return [value], [1.0]
    kind, parts = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("", [])
    listed = isinstance(parts, list) and len(parts) > 0 and all(isinstance(part, str) for part in parts)
    if listed and kind == "difference" and len(parts) == 2:
        return parts, [1.0, -1.0]
    if listed and kind == "mean":
        return parts, [1 / len(parts)] * len(parts)
    raise InputError(
        f"{where} must be a metric, {{difference: [one, other]}} or {{mean: [one, ...]}}, but {value!r} was given"
    )


def _metric(spec: str, where: str) -> str:
    return _told(f"{where}, which names neither an earlier column nor a metric", lambda: parse_metric(spec).spec)


def _filter(given: Any, where: str) -> Filter:
    given = _mapping(given, f"{where}: filter")
    _refuse_unknown(given, FILTER, "filter", where)
    return _told(where, lambda: Filter(**_plain(given, FILTER, where)))


def _size(given: Any, where: str) -> tuple[int, int] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise InputError(f"{where}: size must be [height, width], but {given!r} was given")
    height, width = (_plain({"size": side}, {"size": WHOLE}, where)["size"] for side in given)
    return height, width


def _published(
    given: Any, methods: Collection[str], columns: list[str], where: str
) -> tuple[dict[str, dict[str, float]], str]:
    """Method -> column -> number, and what the numbers are for; a number that cannot be read is given as null."""
    rows = dict(_mapping(given, f"{where}: published"))
    words, names = rows.pop("for", ""), rows.pop("columns", columns)
    _plain({"for": words or "nothing"}, {"for": TEXT}, where)
    if not isinstance(names, list):
        raise InputError(f"{where}: the published columns must be a list of names, but {names!r} was given")
    _refuse_unknown(map(str, names), columns, "column", f"{where}, published")
    _refuse_unknown(rows, methods, "method", f"{where}, published")
    found = {}
    for label, numbers in rows.items():
        if not isinstance(numbers, list) or len(numbers) != len(names):
            raise InputError(f"{where}: {len(names)} published numbers are wanted for {label!r}, not {numbers!r}")
        told = {name: number for name, number in zip(names, numbers) if number is not None}
        _plain(told, dict.fromkeys(told, NUMBER), f"{where}, published for {label!r}")
        found[label] = {name: float(number) for name, number in told.items()}
    return {label: told for label, told in found.items() if told}, words
