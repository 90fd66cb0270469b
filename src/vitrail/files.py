"""Files: written whole or not at all, JSON for them, and names."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from vitrail.errors import InputError


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file so that it appears complete under its name, or not at all."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            write(file)
        os.chmod(temporary, 0o666 & ~_umask())  # noqa: PTH101  a temporary file is private, a result is not
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if temporary is not None and os.path.exists(temporary):  # noqa: PTH110
            os.unlink(temporary)  # noqa: PTH108


def check_writable(folder: Path) -> None:
    """Say early that results cannot be written to a folder, rather than after the work; makes nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"{folder} cannot be written ({existing} is a file); choose another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{folder} cannot be written (no permission in {existing}); choose another folder")


def remove(path: Path) -> None:
    """Remove a file, if there is one."""
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:  # nothing is there to remove; writing will say that the folder is a file
        pass
    except OSError as error:
        raise _unwritable(path, error) from error


def legible(text: str) -> str:
    r"""A text that any encoding can hold: what is no letter, as in the name of a file that is not UTF-8, as a code.

    Example:
        >>> legible("café"), legible("caf\udce9")
        ('café', 'caf\\udce9')
    """
    return text.encode(errors="backslashreplace").decode()


def write_text(path: Path, text: str) -> None:
    """Write a text file so that it appears complete under its name, or not at all."""
    write_whole(path, lambda file: file.write(legible(text).encode()))


def json_bytes(value: Any) -> bytes:
    """A value as legible JSON in UTF-8, whatever stands in its texts: names of files may hold what is no letter."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=1).encode()


def slug(text: str, *, stamped: bool = False, words: bool = False, longest: int = 60) -> str:
    """A spec string, or plain words, as the name of a file or folder; no two texts get the same name.

    Where other texts would look the same as a name, or the same in other letters (some file systems take shark and
    Shark for one name), eight digits of the text's hash follow.

    Args:
        text: The text.
        stamped: Add the digits always, as the folders of a run have them.
        words: The text is plain words, such as a class's name: a dash stands for each space.
        longest: So many letters of the text at most.

    Example:
        >>> slug("ig(steps=20)"), slug("a/b"), slug("a-b"), slug("ig", stamped=True), slug("tabby cat", words=True)
        ('ig-steps=20', 'a-b-c14cddc0', 'a-b-d44362d6', 'ig-26a3482d', 'tabby-cat')
    """
    shown = re.sub(r"[^\w=.,+-]+", "-", text.replace(" ", "-" if words else "")).strip("-")[:longest]
    if not stamped and len(shown) < longest and (_WORDS if words else _SPEC).fullmatch(text):
        return shown
    return f"{shown}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


# Texts that no other looks like as a name: their dashes come from one place only, a spec's bracket or a space.
_SPEC = re.compile(
    r"(?!.*\b(true|false|none)\b)(?!.*\([0-9a-f]{8}\)$)"
    r"[a-z0-9_.+]+(\(([a-z0-9_.+=]|, |True|False|None)+\))?(?<!\.)(?<!\.\))"
)
_WORDS = re.compile(r"(?!.* [0-9a-f]{8}$)[a-z0-9_.+]+( [a-z0-9_.+]+)*(?<!\.)")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written ({error.strerror or error}); choose another folder")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
