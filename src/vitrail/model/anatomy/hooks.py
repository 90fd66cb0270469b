"""Hooks and covers that one thread alone meets.

A module belongs to everybody who holds it: while one thread explains a model, others may be calling it. What is put on
its modules for a pass of ours is therefore passed by in every other thread, whose calls run and answer as always.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

Called = Callable[..., Any]


class Hooks(ExitStack):
    """Hooks for the calls that this thread makes inside the ``with`` block; they go when it ends."""

    def before(self, module: nn.Module, hook: Called, *, named: bool = False) -> None:
        """Call ``hook(module, args)`` before the module runs, with the arguments by name as a third if ``named``."""
        self.callback(module.register_forward_pre_hook(_Heard(hook), with_kwargs=named).remove)

    def behind(self, module: nn.Module, hook: Called) -> None:
        """Call ``hook(module, args, output)`` when the module has run."""
        self.callback(module.register_forward_hook(_Heard(hook)).remove)


class _Heard:
    """A hook; in other threads nothing, whatever it is given: one that is removed during their call may get less."""

    def __init__(self, hook: Called) -> None:
        self.hook = hook
        self.here = threading.get_ident()

    def __call__(self, *given: Any) -> Any:
        return self.hook(*given) if self.is_met() else None

    def is_met(self) -> bool:
        """Whether this thread runs it."""
        return threading.get_ident() == self.here


class _Chooser:
    """Stands in a module's attribute while threads cover it: each of them runs its own cover, all others the module."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.instance: Called | None = vars(module).get(name)
        self.own: Called = getattr(module, name)
        self.covers: dict[int, Called] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.covers.get(threading.get_ident(), self.own)(*args, **kwargs)

    def is_met(self) -> bool:
        """Whether a call from this thread does not simply run the class's own code."""
        return self.instance is not None or threading.get_ident() in self.covers


_CHANGING = threading.Lock()
"""Held while covers are put on and taken off: two models may share modules, and two threads look at both."""


@contextmanager
def covered(covers: Mapping[nn.Module, Called], name: str = "forward") -> Iterator[None]:
    """Inside, modules run something else when this thread calls them.

    Only the instances are covered, not their classes, and uncovered again whatever happens inside.

    Args:
        covers: What each module runs.
        name: The attribute that is called.
    """
    put: list[tuple[nn.Module, Called | None]] = []
    try:
        for module, cover in covers.items():
            put.append((module, _cover(module, name, cover)))
        yield
    finally:
        for module, outer in put:
            _cover(module, name, outer)


def _cover(module: nn.Module, name: str, cover: Called | None) -> Called | None:
    """Let this thread run a cover, or none any more; gives the one it ran before."""
    here = threading.get_ident()
    with _CHANGING:
        found = vars(module).get(name)
        chooser = found if isinstance(found, _Chooser) else _Chooser(module, name)
        outer = chooser.covers.pop(here, None)
        if cover is not None:
            chooser.covers[here] = cover
        if chooser.covers:
            vars(module)[name] = chooser
        elif chooser.instance is not None:
            vars(module)[name] = chooser.instance
        else:
            vars(module).pop(name, None)
    return outer


def is_watched(module: nn.Module) -> bool:
    """Whether a call of this thread meets a hook, or something else than the forward of the module's class."""
    put = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(put) and any(_is_met(hook) for hooks in put for hook in list(hooks.values())):
        return True
    return "forward" in module.__dict__ and _is_met(module.__dict__.get("forward"))


_EVERYWHERE = [
    hooks
    for name, hooks in vars(nn.modules.module).items()
    if name.startswith(("_global_forward", "_global_backward")) and isinstance(hooks, dict)
]
"""Where torch keeps the hooks of `torch.nn.modules.module.register_module_forward_hook` and its like."""


def is_watched_everywhere() -> bool:
    """Whether somebody has put a hook on all modules there are."""
    return any(_EVERYWHERE)


def _is_met(hook: object) -> bool:
    return hook.is_met() if isinstance(hook, _Heard | _Chooser) else True
