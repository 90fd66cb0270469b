"""The bytes of a part: Parquet with a checksum of the whole file in its footer, so that any byte that changed is seen.

Parquet's own page checksums leave out its headers and footer. Parts of earlier versions have no checksum, and are read
for as long as Parquet can make sense of them.
"""

import io
import zlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

MARK = b"vitrail.crc32"
EMPTY = b"0" * 8
"""What stands in the place of the checksum while it is calculated."""

BETWEEN = 2
"""Bytes between the mark and the checksum, in which Parquet says that a value follows, and how long it is."""

PLAIN = {b"ARROW:schema"}
"""All that the footer of a part without a checksum says beside its columns."""


class DamagedError(Exception):
    """The bytes of a part are not those that were written; the text says how this shows."""


def seal(table: pa.Table) -> bytes:
    """A table as the bytes of a part."""
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({MARK: EMPTY}), buffer, compression="zstd")
    data = buffer.getvalue()
    start = _place(data)
    assert data[start : start + len(EMPTY)] == EMPTY, "Parquet writes its footer as it always did"
    return data[:start] + _checksum(data, start) + data[start + len(EMPTY) :]


def check(data: bytes) -> None:
    """Refuse bytes that are not those that were written."""
    start = _place(data)
    if start >= 0:
        if data[start : start + len(EMPTY)] != _checksum(data, start):
            raise DamagedError("its checksum is another")
        return
    try:
        said = set(pq.read_metadata(io.BytesIO(data)).metadata or {})
        if said != PLAIN:
            raise DamagedError("its checksum is gone")
        pq.read_table(io.BytesIO(data)).validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedError(f"it is no Parquet that can be read: {error}") from error


def names(data: bytes) -> list[str]:
    """The names of a part's columns."""
    found: list[str] = pq.read_schema(io.BytesIO(data)).names
    return found


def rows(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """A part's rows.

    Args:
        data: Its bytes, which `check` found to be good.
        columns: Only these.
    """
    found = pq.read_table(io.BytesIO(data), columns=None if columns is None else list(columns))
    return found.replace_schema_metadata(None)


def _place(data: bytes) -> int:
    """Where the checksum stands; -1 where there is none."""
    found = data.rfind(MARK)
    return found if found < 0 else found + len(MARK) + BETWEEN


def _checksum(data: bytes, start: int) -> bytes:
    """The checksum of all other bytes."""
    view = memoryview(data)
    return b"%08x" % zlib.crc32(view[start + len(EMPTY) :], zlib.crc32(view[:start]))
