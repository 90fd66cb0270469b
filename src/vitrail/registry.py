"""One registry for each kind of thing that is asked for by name: methods, metrics, baselines, models, data, protocols.

An installed package adds to it by an entry point, whose module is imported only when a name is not found here, or when
everything is listed.
"""

import difflib
import fnmatch
import threading
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from vitrail.errors import BrokenPlugin, InputError, Renamed

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """Things of one kind by their names.

    To look up a name that is not there, or to list all `names`, loads plug-ins. To iterate does not: it gives what has
    been entered so far.

    Args:
        kind: What error messages call such a thing.
        group: The entry points' group, such as ``vitrail.methods``.
        adopt: Enters what a plug-in's entry point gives, by the entry point's name. By default that enters itself, as a
            method does that is decorated with `vitrail.method.register`.
        tell: What there is to know of a thing, as JSON has it: its name, and the thing.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        *,
        adopt: Callable[[str, Any], None] | None = None,
        tell: Callable[[str, T], dict[str, Any]] | None = None,
    ) -> None:
        self.kind, self.group = kind, group
        self._adopt, self._tell = adopt, tell
        self._things: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._tried: set[EntryPoint] = set()
        self._broken: dict[str, str] = {}
        self._lock = threading.RLock()

    def enter(self, name: str, thing: T, *, was: tuple[str, ...] = ()) -> None:
        """Enter a thing, once.

        Args:
            name: What it is called.
            thing: The thing.
            was: What it was called before. These names keep working, with a warning.
        """
        for one in (name, *was):
            if one in self._things or one in self._aliases:
                raise ValueError(f"two {self.kind}s are called {one}")
        self._things[name] = thing
        self._aliases |= dict.fromkeys(was, name)

    def names(self, pattern: str = "*") -> list[str]:
        """All names in order, those of plug-ins too, or those that match a pattern such as ``*cam*``."""
        self._load(None)
        for sentence in self._broken.values():
            warnings.warn(sentence, BrokenPlugin, stacklevel=2)
        return [name for name in sorted(self._things) if fnmatch.fnmatchcase(name, pattern)]

    def schema(self, pattern: str = "*") -> list[dict[str, Any]]:
        """All that there is to know of each thing whose name matches a pattern, as JSON has it."""
        tell = self._tell or (lambda name, _: {"id": name})
        return [tell(name, self._things[name]) for name in self.names(pattern)]

    def find(self, name: str, otherwise: str) -> T:
        """The thing of a name.

        Args:
            name: Its name, or one that it had before.
            otherwise: What to say to those who asked for one that nothing is called like.
        """
        try:
            return self[name]
        except KeyError:
            near = self.near(name)
            hint = f"did you mean {' or '.join(near)}?" if near else otherwise
            raise InputError(f"there is no {self.kind} called {name!r}; {hint}") from None

    def near(self, name: str) -> list[str]:
        """At most two names that are written like one that is not there."""
        return difflib.get_close_matches(name, self._things, n=2, cutoff=0.5)

    def current(self, name: str) -> str:
        """What a thing is called now; a name that it had before is warned of, one that is not known stays."""
        if name in self._things or name not in self._aliases:
            return name
        new = self._aliases[name]
        warnings.warn(f"the {self.kind} {name} is called {new} now; write {new}", Renamed, stacklevel=3)
        return new

    def __getitem__(self, name: str) -> T:
        """The thing of a name; where there is none yet, of a plug-in."""
        name = self.current(name)
        if name not in self._things:
            self._load(name)
        if name not in self._things and name in self._broken:
            raise InputError(self._broken[name])
        if name not in self._things:
            self._load(None)  # a module may enter more than its entry points are called
        return self._things[name]

    def __setitem__(self, name: str, thing: T) -> None:
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def _load(self, name: str | None) -> None:
        """Load the plug-ins of a name, or all; each is tried once."""
        with self._lock:
            for point in entry_points(group=self.group):
                if point in self._tried or name not in (None, point.name):
                    continue
                self._tried.add(point)  # before it is loaded: it may look for names itself
                try:
                    found = point.load()
                    if self._adopt is not None:
                        self._adopt(point.name, found)
                    elif point.name not in self._things:
                        raise LookupError(f"{point.value} registers no {self.kind} of this name")
                except Exception as error:  # whatever code of others raises
                    self._broken[point.name] = self._sentence(point, error)

    def _sentence(self, point: EntryPoint, error: Exception) -> str:
        package = "a package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        said = (str(error).strip() or "without a word").splitlines()[0][:160]
        return (
            f"the {self.kind} {point.name!r} is a plug-in of {package}, which cannot be loaded "
            f"({type(error).__name__}: {said}); repair that package, or uninstall it"
        )
