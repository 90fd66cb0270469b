"""Watch a classifier run once, and check that the parts found in it, one after another, give its own answer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import InputError, option
from vitrail.model import anatomy
from vitrail.model.anatomy import Layout, Readout, Visit
from vitrail.model.tap import Tap
from vitrail.model.trace import logits_of

if TYPE_CHECKING:
    from vitrail.model.view import View


class Seen(NamedTuple):
    """What the model did on a blank picture, and what it answers to a probe."""

    visits: list[Visit]
    probe: Tensor
    answer: Tensor


def look(view: "View") -> Seen:
    """Watch the model run once."""
    try:
        visits = anatomy.watch(view.model, view.blank(view.size))
        with torch.no_grad():
            probe = torch.randn(2, 3, *view.size, generator=torch.Generator().manual_seed(0))
            answer = logits_of(view.model(probe.to(view.device, view.dtype)))
    except (AssertionError, RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            f"{view.name} could not be run on a (1, 3, {view.size[0]}, {view.size[1]}) input ({_one_line(error)}); "
            f"if it wants another height and width, give the {option('size')}"
        ) from error
    if not isinstance(answer, Tensor) or answer.ndim != 2:
        shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise InputError(
            f"{view.name} must answer (batch, classes) logits, but it answered {shape}; wrap it in a module that does"
        )
    return Seen(visits, probe, answer)


def readout(view: "View", probe: Tensor, expected: Tensor, layout: Layout) -> Readout | None:
    """What the head reads; None where embed, encode and head one after another do not give the model's own answer."""
    try:
        with torch.no_grad():
            last = view.encode(view.embed(probe), layout)[-1]
        with torch.enable_grad(), Tap(read=True) as tap:
            last = last.detach().requires_grad_()
            logits = view.head(last, layout)
    except (AssertionError, IndexError, RuntimeError, ValueError):
        return None
    finite = torch.isfinite(expected)
    if logits.shape != expected.shape or not torch.allclose(logits[finite], expected[finite], 1e-2, 1e-3):
        return None
    direction = torch.linspace(-1, 2, expected.shape[1], device=logits.device, dtype=logits.dtype)
    (gradient,) = torch.autograd.grad((logits * direction).sum(), last)
    strength = gradient.float().norm(dim=2).sum(0).nan_to_num(1.0)
    if strength.max() == 0:  # an untrained head of zeros tells nothing: assume what most models do
        strength[0] = 1.0
    read = strength > 1e-6 * strength.max()
    return Readout(
        prefix=tuple(read[: layout.prefix].nonzero().squeeze(1).tolist()),
        patches=bool(read[layout.prefix :].any()),
        attention=any(a.shape[-1] == layout.tokens for a in tap.attention),
    )


def takes_channels_last(view: "View", probe: Tensor, expected: Tensor) -> bool:
    """Whether the model answers the same to pictures with a pixel's channels side by side.

    Code that calls ``view`` on activations, or reads their memory by itself, may not.
    """
    beside = probe.to(view.device, view.dtype).contiguous(memory_format=torch.channels_last)
    try:
        with torch.no_grad():
            found = logits_of(view.model(beside))
    except (AssertionError, RuntimeError, ValueError):
        return False
    return torch.allclose(found.float(), expected.float(), 1e-2, 1e-2 * float(expected.abs().max()), equal_nan=True)


@contextmanager
def taking(view: "View", size: Sequence[int]) -> Iterator[None]:
    """Say it in a sentence when the model refuses inputs of another size than its own."""
    try:
        yield
    except (AssertionError, RuntimeError, ValueError) as error:
        if tuple(size) == view.size or isinstance(error, InputError | torch.OutOfMemoryError):
            raise
        raise InputError(
            f"{view.name} cannot take pictures of {' x '.join(map(str, size))} pixels ({_one_line(error)}); "
            f"it wants {view.size[0]} x {view.size[1]}"
        ) from error


def _one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
