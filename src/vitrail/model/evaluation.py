"""Evaluation mode for a while, after which a model is as it was."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.model.anatomy.hooks import Called, covered


class Evaluation:
    """Evaluation mode without trainable weights, and every module run uncompiled in this thread.

    What was switched off is switched on again, whatever happens inside. The first time, when a model is looked at, all
    else is compared with what it was: what the model's own forward pass changes (a buffer that counts, a part that it
    puts in training mode) is put back then, and every time from then on. A buffer that is replaced by one of another
    shape counts nothing, but is a table made for another picture size, and stays.

    Training mode and ``requires_grad`` belong to a module, not to a thread. A call from another thread meanwhile runs
    in evaluation mode too, its answer has no gradient for the weights, and what it writes into such buffers is lost.

    Args:
        model: Any module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._changing: _Changing | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Evaluation mode inside; one thread at a time."""
        seen = _Seen(self.model)
        before = _Before(_everything(seen.modules) if self._changing is None else self._changing)
        try:
            for module in seen.training:
                module.training = False
            _train(seen.trainable, on=False)
            with _uncompiled(seen) if seen.compiled or seen.wrappers else nullcontext():
                yield
        finally:
            for module in seen.training:
                module.training = True
            _train(seen.trainable, on=True)
            changed = before.put_back()
            self._changing = self._changing or changed


class _Changing(NamedTuple):
    """What may change when a model runs: modules' modes, whether weights are trainable, and buffers."""

    modules: list[nn.Module]
    weights: list[nn.Parameter]
    buffers: list[tuple[nn.Module, str]]


def _everything(modules: list[nn.Module]) -> _Changing:
    weights = [weight for module in modules for weight in module._parameters.values() if weight is not None]
    return _Changing(modules, weights, [(module, name) for module in modules for name in module._buffers])


class _Seen:
    """All modules of a model, those in training mode, those that are compiled, and the trainable weights.

    One walk instead of ``model.modules()`` and ``model.parameters()``: at every call, these take longer than all else.
    """

    def __init__(self, model: nn.Module) -> None:
        self.training: list[nn.Module] = []
        self.trainable: list[nn.Parameter] = []
        self.compiled: list[nn.Module] = []
        self.wrappers: list[nn.Module] = []
        self.modules, seen = [model], {model}
        for module in self.modules:  # it grows as it is walked
            if module.training:
                self.training.append(module)
            if parameters := module._parameters:
                self.trainable += [w for w in parameters.values() if w is not None and w.requires_grad]
            if inside := module._modules:
                children = [child for child in inside.values() if child is not None and child not in seen]
                seen.update(children)
                self.modules += children
                if _ORIGINAL in inside:
                    self.wrappers.append(module)
            if _COMPILED in module.__dict__:
                self.compiled.append(module)


class _Before:
    """What could change, as it is now."""

    def __init__(self, changing: _Changing) -> None:
        self.modules = [module for module in changing.modules if not module.training]
        self.weights = [weight for weight in changing.weights if not weight.requires_grad]
        self.buffers = [
            (module, name, buffer, buffer.clone())
            for module, name in changing.buffers
            if (buffer := module._buffers.get(name)) is not None
        ]

    def put_back(self) -> _Changing:
        """Make it so again; gives what was otherwise."""
        modules = [module for module in self.modules if module.training]
        for module in modules:
            module.training = False
        weights = [weight for weight in self.weights if weight.requires_grad]
        _train(weights, on=False)
        buffers = [before[:2] for before in self.buffers if _put_back(*before)]
        return _Changing(modules, weights, buffers)


def _put_back(module: nn.Module, name: str, buffer: Tensor, copy: Tensor) -> bool:
    """Give a module its buffer back with what was in it; whether it was another, or held something else."""
    now = module._buffers.get(name)
    if now is None or (now.shape, now.dtype, now.device) != (copy.shape, copy.dtype, copy.device):
        return False
    same = torch.equal(buffer, copy)  # the values, because batch normalisation changes them without counting it
    if not same:
        with torch.inference_mode(buffer.is_inference()), torch.no_grad():
            buffer.copy_(copy)
    module._buffers[name] = buffer
    return not same or now is not buffer


def _train(weights: list[nn.Parameter], *, on: bool) -> None:
    """Make weights trainable or not; those made in inference mode can be made trainable nowhere else."""
    for weight in weights:
        try:
            weight.requires_grad = on
        except RuntimeError:
            with torch.inference_mode():
                weight.requires_grad = on


_COMPILED, _ORIGINAL = "_compiled_call_impl", "_orig_mod"
"""Where torch keeps what ``module.compile()`` made of a module, and ``torch.compile(module)`` the module itself."""


@contextmanager
def _uncompiled(seen: _Seen) -> Iterator[None]:
    """Let this thread run the plain code of compiled modules: a look inside would compile it again and again."""
    originals: dict[nn.Module, Called] = {wrapper: wrapper.get_submodule(_ORIGINAL) for wrapper in seen.wrappers}
    plain: dict[nn.Module, Called] = {module: getattr(module, "_call_impl", module.forward) for module in seen.compiled}
    with covered(originals), covered(plain, _COMPILED):
        yield
