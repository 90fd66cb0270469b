"""Models that a function in a user's own file makes."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from vitrail.errors import InputError
from vitrail.model.sources.source import SOURCES, Asked, Found, Source, of_user, said


def build(asked: Asked) -> Found:
    """What a function in a user's file returns; called by the file without its folder, which differs by machine."""
    path, _, function = asked.name.rpartition(":")
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise InputError(f"there is no file {path}; a model of your own is given as FILE.py:FUNCTION")
    try:
        make = getattr(_imported(file), function, None)
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"{path} cannot be imported: it raised {said(error)}") from error
    if not callable(make):
        named = f"has no function called {function!r}" if function else "is given without a function"
        raise InputError(f"{path} {named}; a model of your own is given as FILE.py:FUNCTION")
    try:
        found = make()
    except Exception as error:
        raise InputError(f"{function}() in {path} raised {said(error)}") from error
    return of_user(found, f"{file.name}:{function}", f"{function}() in {path}")


def _imported(file: Path) -> Any:
    """A user's file as a module, under a name of our own: it hides no other, and pickle and dataclasses find it."""
    private = "_vitrail" + re.sub(r"\W", "_", str(file))
    spec = importlib.util.spec_from_file_location(private, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[private] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[private]
        raise
    return module


SOURCES.enter("file", Source("FILE.py:FUNCTION", build))
