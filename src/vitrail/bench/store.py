"""A run is a folder: a manifest that says what is measured, and Parquet parts, each whole or not there at all.

Any place that fsspec knows will do: a path, ``s3://...``, ``memory://...``. A part belongs to one unit of work and is
written once, under a temporary name first. Who dies in between leaves nothing that another could mistake for a part.
A part has a checksum, which is verified when the part is first read.
"""

import contextlib
import json
import posixpath
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from vitrail.bench import sealed
from vitrail.errors import InputError, option
from vitrail.files import check_writable, json_bytes, legible

MANIFEST, PARTS, ENDING = "manifest.json", "parts", ".parquet"

NAMED = 5
"""So many damaged parts at most are named in a message."""

DEEPEST = 32
"""Levels that the JSON of a run may have, one inside the other: far more than vitrail writes."""


class Store:
    """The folder of a run.

    Args:
        place: A path, or a URL that fsspec knows.

    Example:
        >>> store = Store("memory://an-example")
        >>> store.begin({"model": "demo", "images": 2})
        >>> store.write("ig/00000", pa.table({"image": ["a", "b"]}))
        >>> list(store.units())
        ['ig/00000']
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._names: dict[str, list[str]] = {}
        self._whole: set[str] = set()
        try:
            self._files, self._root = fsspec.core.url_to_fs(str(place))
        except (ImportError, ValueError) as error:
            raise InputError(f"{place} cannot be opened ({error}); give a folder or a URL that fsspec knows") from error

    def __reduce__(self) -> tuple[type["Store"], tuple[str]]:
        return Store, (self.place,)  # workers on other machines open it themselves

    def check_writable(self) -> None:
        """Say early that nothing can be written to a folder of this machine; makes nothing."""
        if isinstance(self._files, LocalFileSystem):
            check_writable(Path(self._root))

    # ---------------------------------------------------------------------------------------------------- manifest

    def begin(self, facts: Mapping[str, Any], unsaid: Mapping[str, Any] | None = None) -> None:
        """Say what the run measures; where that was said before, it must be the same.

        Args:
            facts: What the results depend on, ready for JSON.
            unsaid: What held for runs of earlier versions, whose manifests do not say it.
        """
        wanted = json.loads(json.dumps(facts))
        known = self.manifest()
        if known is None:
            if any(True for _ in self.units()) and self.manifest() is None:  # another runner may have begun meanwhile
                raise InputError(f"{self.place} holds parts of a run but no {MANIFEST}; choose another folder")
            self._put(MANIFEST, json_bytes(wanted))
            return
        gaps = list(differences({**(unsaid or {}), **known}, wanted))
        if gaps:
            raise InputError(
                f"{self.place} holds another run; choose another folder, or ask for the same. " + "; ".join(gaps[:6])
            )

    def manifest(self) -> dict[str, Any] | None:
        """What was said when the run began; None where none has."""
        return self.noted_mapping(MANIFEST)

    def note(self, name: str, text: str) -> None:
        """Put down a text beside the parts, in place of an older one of that name."""
        self._put(name, legible(text).encode())

    def noted(self, name: str) -> str | None:
        """A text that `note` put down; None where there is none."""
        try:
            return self._get(name).decode(errors="backslashreplace")
        except FileNotFoundError:
            return None

    def noted_mapping(self, name: str) -> dict[str, Any] | None:
        """The mapping that a JSON file beside the parts holds; None where there is no such file."""
        try:
            found = json.loads(self._get(name))
            if not isinstance(found, dict):
                raise ValueError(f"it holds {_short(found)} instead of names with values")
            if _depth(found) > DEEPEST:
                raise ValueError("it is nested too deeply")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.place}/{name} cannot be read ({error}); choose another folder") from error
        return found

    def within(self, name: str) -> "Store":
        """A store in a folder of this one."""
        return Store(posixpath.join(self.place, name))

    # ------------------------------------------------------------------------------------------------------- parts

    def units(self) -> Iterator[str]:
        """The names of all parts that are there, in order."""
        self._files.invalidate_cache()
        top = self._path(PARTS)
        for path in sorted(self._files.find(top)) if self._files.exists(top) else ():
            name = path[path.index(top) + len(top) + 1 :]
            if name.endswith(ENDING) and not posixpath.basename(name).startswith("."):
                yield name.removesuffix(ENDING)

    def has(self, unit: str) -> bool:
        """Whether a unit is done."""
        self._files.invalidate_cache()
        found: bool = self._files.exists(self._path(f"{PARTS}/{unit}{ENDING}"))
        return found

    def write(self, unit: str, table: pa.Table) -> None:
        """Put down what a unit found. One that is there already stays: results are the same whoever made them.

        Args:
            unit: A name such as ``genatt/00012``.
            table: The rows.
        """
        if self.has(unit):
            return
        self._put(f"{PARTS}/{unit}{ENDING}", sealed.seal(table))

    def names(self, unit: str) -> list[str]:
        """The names of a part's columns. A part never changes, so they are looked up once."""
        if unit not in self._names:
            self._names[unit] = sealed.names(self._part(unit))
        return self._names[unit]

    def read(self, unit: str, columns: Sequence[str] | None = None) -> pa.Table:
        """What a unit found.

        Args:
            unit: A name such as ``genatt/00012``.
            columns: Only these.
        """
        return sealed.rows(self._part(unit), columns)

    def repair(self) -> list[str]:
        """Remove the parts that are damaged, so that the run makes them again; their names."""
        found = list(self._damaged())
        for unit in found:
            path = self._path(f"{PARTS}/{unit}{ENDING}")
            try:
                self._files.rm(path)
            except FileNotFoundError:  # another runner repairs the run too
                continue
            except OSError as error:
                raise InputError(f"{path} cannot be removed ({error.strerror or error}); remove it yourself") from error
        return found

    def _damaged(self) -> Iterator[str]:
        for unit in self.units():
            try:
                self._checked(unit)
            except sealed.DamagedError:
                yield unit

    def _part(self, unit: str) -> bytes:
        """The bytes of a part that is not damaged. Where it is, all damaged ones are named."""
        try:
            return self._checked(unit)
        except sealed.DamagedError as error:
            damaged = [repr(one) for one in self._damaged()]
            more = f" and {len(damaged) - NAMED:,} more" * (len(damaged) > NAMED)
            what = f"the part {unit!r} of {self.place} is damaged ({error})"
            if len(damaged) > 1:
                what = f"{len(damaged):,} parts of {self.place} are damaged: {', '.join(damaged[:NAMED])}{more}"
            raise InputError(
                f"{what}; start the run again with {option('repair', python='repair=True')}, which makes "
                f"{'them' if len(damaged) > 1 else 'it'} again"
            ) from error

    def _checked(self, unit: str) -> bytes:
        try:
            data = self._get(f"{PARTS}/{unit}{ENDING}")
        except FileNotFoundError as error:
            raise InputError(f"{self.place} has no part {unit!r}; start the run again to make it") from error
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"the part {unit!r} of {self.place} cannot be read ({why}); mend the folder") from error
        if unit not in self._whole:
            sealed.check(data)
            self._whole.add(unit)
        return data

    # ------------------------------------------------------------------------------------------------------- files

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def _get(self, name: str) -> bytes:
        found: bytes = self._files.cat_file(self._path(name))
        return found

    def _put(self, name: str, data: bytes) -> None:
        """Write a file so that it appears complete under its name, or not at all."""
        path = self._path(name)
        folder, last = posixpath.split(path)
        temporary = posixpath.join(folder, f".{last}.{uuid.uuid4().hex}")
        try:
            self._files.makedirs(folder, exist_ok=True)
            self._files.pipe_file(temporary, data)
            self._files.mv(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.rm(temporary)
            raise InputError(
                f"{self.place}/{name} cannot be written ({error.strerror or error}); make room or mend the folder, "
                "then start the run again: it goes on from here"
            ) from error


def _depth(value: Any) -> int:
    """Levels of mappings and lists, one inside the other."""
    found, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        found += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return found


def differences(known: Any, wanted: Any, name: str = "") -> Iterator[str]:
    """In words, where two manifests differ.

    Example:
        >>> list(differences({"model": "a", "n": 1}, {"model": "b", "n": 1}))
        ["model is 'a' there, but 'b' was asked for"]
    """
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*known, *wanted]):
            inner = f"{name}.{key}" if name else str(key)
            if key not in known or key not in wanted:
                yield f"{inner} is only {'asked for' if key in wanted else 'there'}"
            else:
                yield from differences(known[key], wanted[key], inner)
    elif known != wanted:
        yield f"{name} is {_short(known)} there, but {_short(wanted)} was asked for"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
