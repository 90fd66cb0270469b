"""What is explained: the predicted class, a class by number or name, a text prompt, a likeness, or any function."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import InputError, option
from vitrail.model.anatomy.check import taking
from vitrail.model.anatomy.hooks import Hooks
from vitrail.model.anatomy.watch import watch
from vitrail.model.memory import is_out_of_memory
from vitrail.model.pictures import oddity
from vitrail.model.sources.open_clip import ZeroShot
from vitrail.model.trace import logits_of
from vitrail.model.view import View

LONGEST = 30
LONG = 10**LONGEST
"""No number of a class has so many digits, and Python reads and writes numbers of some thousand only when told to."""
FEW = 20
"""So many classes at most are all named in a message."""
HALF = (torch.bfloat16, torch.float16)
ROUNDINGS = 8
"""Logits of the same picture, computed beside others, lie up to so many roundings apart. In half precision one is all
that is allowed for: there a mean of many answers tells more than each of them."""


@dataclass(frozen=True)
class Target:
    """One score an image, as a function of its logits.

    Attributes:
        classes: (B,) the class explained for each image, or None for a function of the user's own.
        function: The user's function, (B, classes) -> (B,).
        rivals: (B, K) classes that the images show besides, -1 where there are fewer; None where that is not known.
            Methods that compare classes can compare with these.
    """

    classes: Tensor | None
    function: Callable[[Tensor], Tensor] | None = None
    rivals: Tensor | None = None

    def score(self, logits: Tensor) -> Tensor:
        """(B, classes) -> (B,): the number whose origin is looked for."""
        if self.function is None:
            assert self.classes is not None
            return logits.gather(1, self.classes.to(logits.device)[:, None]).squeeze(1)
        try:
            scores = self.function(logits.clone())  # what it does to them in place, it does to its own
        except Exception as error:
            if isinstance(error, InputError) or is_out_of_memory(error):
                raise
            said = f"{type(error).__name__}: {str(error).strip() or 'without a word'}".splitlines()[0]
            raise InputError(f"the target function raised {said}; it is given (images, classes) logits") from error
        if not isinstance(scores, Tensor) or scores.shape != logits.shape[:1] or scores.is_complex():
            found = f"{scores.dtype} {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
            raise InputError(f"a target function must return one score an image, ({len(logits)},), but it gave {found}")
        if logits.requires_grad and not scores.requires_grad:
            raise InputError(
                "the target function's scores do not depend on the logits, as far as torch can tell, so they have no "
                "gradient; calculate them from the logits with torch, without detach(), item() or whole numbers"
            )
        return scores

    def to(self, device: torch.device) -> "Target":
        """The same target, its class numbers on a device."""
        return self._each(lambda numbers: numbers.to(device, non_blocking=True))

    def repeat(self, times: int) -> "Target":
        """The target of ``times`` copies of the images, one set after the other."""
        return self._each(lambda numbers: numbers.repeat(times, *[1] * (numbers.ndim - 1)))

    def probability(self, logits: Tensor) -> Tensor:
        """(B, classes) -> (B,): the class's softmax probability; a user's own function, or a likeness, as it is."""
        return self.score(logits if self.function is not None or logits.shape[1] == 1 else logits.softmax(1))

    def rounding(self, logits: Tensor, scores: Tensor, *, probability: bool) -> Tensor:
        """(B,) how far apart scores may lie by the rounding of the numbers that they are made of.

        Args:
            logits: (B, classes) as the model gave them, in the type that it calculated in.
            scores: (B,), what `score` or `probability` made of them.
            probability: Which of the two.
        """
        digits = torch.finfo(logits.dtype).eps * (1 if logits.dtype in HALF else ROUNDINGS)
        if self.function is not None or logits.shape[1] == 1:
            return digits * scores.abs()
        sizes = digits * logits.abs().amax(1).to(scores.dtype)
        return sizes * (scores * (1 - scores)).abs() if probability else sizes

    def take(self, rows: slice | Tensor) -> "Target":
        """The target of some of the images."""
        return self._each(lambda numbers: numbers[rows if isinstance(rows, slice) else rows.to(numbers.device)])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Target":
        """The same change made to all that has one row an image."""
        classes, rivals = (None if numbers is None else change(numbers) for numbers in (self.classes, self.rivals))
        return replace(self, classes=classes, rivals=rivals)


@dataclass(frozen=True, eq=False)
class Likeness:
    """Explain how much an image is like a reference: the cosine between their representations.

    Works on models without classes too. Get the reference from `representation`.

    Attributes:
        reference: (D,) or (1, D), as `representation` gives it.
    """

    reference: Tensor


TargetLike: TypeAlias = int | str | Tensor | Sequence[int | str] | Callable[[Tensor], Tensor] | Likeness | Target | None


def resolve(view: View, target: TargetLike, images: int) -> tuple[View, Target | None]:
    """Turn what the user asked for into a view and a target over its outputs; None means: whatever is predicted.

    Args:
        view: The model.
        target: What to explain; a list has one entry an image. A ready `Target` is only checked.
        images: How many images there are.
    """
    if target is None or (isinstance(target, str) and target == "predicted"):
        return view, None
    if isinstance(target, Target):
        return view, _checked(view, target, images)
    if isinstance(target, Likeness):
        return _likeness_view(view, target), Target(torch.zeros(images, dtype=torch.long))
    if callable(target) and not isinstance(target, Tensor):
        return view, Target(None, target)
    if isinstance(target, np.ndarray | np.integer):
        target = torch.as_tensor(target) if target.dtype.kind in "biufc" else target.tolist()
    entries = _entries(target, images)
    prompts = [e for e in dict.fromkeys(entries) if isinstance(e, str) and _lookup(view, e) is None]
    if prompts and isinstance(view.model, ZeroShot):
        view = _prompted(view, view.model, prompts)
    return view, Target(torch.tensor([class_index(view, entry) for entry in entries]))


def _checked(view: View, target: Target, images: int) -> Target:
    """The target, whose classes are there and one an image."""
    if target.classes is None and (target.function is None or target.rivals is not None):
        raise InputError("a target must have classes, or a function of the logits and no rivals")
    for what, numbers, axes, least in (("classes", target.classes, 1, 0), ("rivals", target.rivals, 2, -1)):
        if numbers is None:
            continue
        if not isinstance(numbers, Tensor) or numbers.dtype != torch.long or numbers.ndim != axes:
            shape = "(images,)" if axes == 1 else "(images, rivals)"
            given = f"{numbers.dtype} {tuple(numbers.shape)}" if isinstance(numbers, Tensor) else type(numbers).__name__
            raise InputError(f"a target's {what} must be a {shape} tensor of int64 numbers, but a {given} was given")
        if len(numbers) != images:
            raise InputError(f"the target's {what} are for {len(numbers)} images, but {images} were given")
        strange = numbers[(numbers < least) | (numbers >= view.num_classes)]
        if len(strange):
            class_index(view, int(strange[0]))
    return target


def _entries(target: int | str | Tensor | Sequence[int | str], images: int) -> list[int | str]:
    if isinstance(target, Tensor):
        odd = oddity(target)
        if odd is not None:
            raise InputError(f"a target tensor must be a plain one, but one was given that is {odd[0]}; give {odd[1]}")
        if target.is_floating_point() or target.ndim > 1:
            raise InputError(
                f"a target tensor must hold class numbers, (images,), but a {target.dtype} "
                f"{tuple(target.shape)} tensor was given; for a likeness use vitrail.Likeness(reference)"
            )
        target = target.tolist()
    if isinstance(target, int | str) and not isinstance(target, bool):
        return [target] * images
    if not isinstance(target, Sequence) or not all(
        isinstance(e, int | str) and not isinstance(e, bool) for e in target
    ):
        raise InputError(
            f"a target must be 'predicted', a class number or name, one of these per image, or a function of the "
            f"logits, but {target!r} was given"
        )
    if len(target) != images:
        raise InputError(f"{len(target)} targets were given for {images} images; give one each, or one for all")
    return list(target)


def class_index(view: View, entry: int | str) -> int:
    """The number of a class that is given by its number or its name."""
    if isinstance(entry, str):
        found = _lookup(view, entry)
        if found is not None:
            return found
        near = difflib.get_close_matches(entry, view.classes or (), n=3, cutoff=0.5)
        if near:
            hint = f"did you mean {' or '.join(repr(name) for name in near)}?"
        elif view.classes and len(view.classes) <= FEW:
            hint = f"its classes are {', '.join(view.classes)}"
        elif view.classes:
            hint = f"give another of its {view.num_classes} names, or a number from 0 to {view.num_classes - 1}"
        else:
            hint = f"it has no names: give a number from 0 to {view.num_classes - 1}, or names with {option('classes')}"
        raise InputError(f"{view.name} has no class called {entry!r}; {hint}")
    if not 0 <= entry < view.num_classes:
        number = str(entry) if abs(entry) < LONG else "of so large a number"
        raise InputError(
            f"class {number} does not exist: {view.name} has {view.num_classes} classes, 0 to {view.num_classes - 1}"
        )
    return entry


def _lookup(view: View, name: str) -> int | None:
    """The class of that name, that number, or one of whose comma-separated synonyms is that name."""
    wanted = name.strip().casefold()
    names = [c.casefold() for c in view.classes or ()]
    if wanted in names:
        return names.index(wanted)
    if wanted.removeprefix("-").isdecimal():
        return class_index(view, int(wanted) if len(wanted) < LONGEST else LONG)
    synonyms = [i for i, c in enumerate(names) if wanted in (part.strip() for part in c.split(","))]
    return synonyms[0] if synonyms else None


def _prompted(view: View, model: ZeroShot, prompts: list[str]) -> View:
    """The same zero-shot classifier with more prompts to choose from."""
    return View.of(model.with_prompts(prompts), like=view, classes=(*(view.classes or ()), *prompts))


class _Similarity(nn.Module):
    """Answers one number: the cosine between what enters the classifier's last layer and a reference."""

    def __init__(self, model: nn.Module, classifier: nn.Module | None, reference: Tensor) -> None:
        super().__init__()
        self.model = model
        self._classifier = (classifier,)  # in a tuple, so that the layer is not registered twice
        self.register_buffer("reference", nn.functional.normalize(reference.reshape(1, -1), dim=-1))

    def forward(self, images: Tensor) -> Tensor:
        found = nn.functional.normalize(_before(self.model, self._classifier[0], images), dim=-1)
        return nn.functional.linear(found, self.get_buffer("reference"))


def representation(view: View, images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, D): what enters the classifier's last layer, as a reference for `Likeness`."""
    with view.still(), torch.no_grad(), taking(view, images.shape[2:]):
        return _before(view.model, _classifier(view), images.to(view.device, view.dtype))


def _likeness_view(view: View, target: Likeness) -> View:
    if not isinstance(target.reference, Tensor) or oddity(target.reference) is not None:
        raise InputError(
            "the reference must be a plain tensor; make it with vitrail.model.representation(view, images)"
        )
    classifier = _classifier(view)
    reference = target.reference.detach().to(view.device, view.dtype)
    width = view.num_classes if classifier is None else classifier.in_features
    if reference.numel() != width:
        raise InputError(
            f"the reference has {reference.numel()} numbers, but {view.name} represents an image by "
            f"{width}; make it with vitrail.model.representation(view, images)"
        )
    return View.of(_Similarity(view.model, classifier, reference), like=view, classes=("likeness",))


def _classifier(view: View) -> nn.Linear | None:
    """The linear layer that answers the classes; None where the model has none and answers its representation."""
    with view.still():
        visits = watch(view.model, torch.zeros(1, 3, *view.size, device=view.device, dtype=view.dtype))
    for visit in reversed(visits):
        if isinstance(visit.module, nn.Linear) and visit.result.shape == (1, view.num_classes):
            return visit.module
    return None


def _before(model: nn.Module, layer: nn.Module | None, images: Tensor) -> Tensor:
    if layer is None:
        return logits_of(model(images))
    entered: list[Any] = []
    with Hooks() as hooks:
        hooks.before(layer, lambda _, args: entered.append(args[0]))
        logits_of(model(images))
    found: Tensor = entered[-1]
    return found
