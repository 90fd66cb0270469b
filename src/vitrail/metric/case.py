"""A case: images, their maps, all that is known of them, and the model's answers, kept so that metrics share them."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.method import Batch, Method
from vitrail.model import Target, View, full, in_parts
from vitrail.perturb import Baseline, Canvas, PixelCanvas, RemovalCanvas, Responder, counted, order_of, ranks_of

Sign = Literal["signed", "positive", "absolute"]
"""What of a map counts: its values as they are, what speaks for the target, or what speaks at all."""

Enlarge = Literal["auto", "bilinear", "nearest", "bicubic"]
"""How a map gets the size of the picture; ``auto`` as its method wants it (bilinear, but MDA's cells stay whole)."""

Whose = Literal["explained", "predicted", "label"]
"""The class whose probability counts: the one explained, the one predicted for the whole picture, the true one."""

WHOSE: tuple[Whose, ...] = ("explained", "predicted", "label")

T = TypeVar("T")


def _once(kept: dict[Any, Any], key: Any, make: Callable[[], T]) -> T:
    if key not in kept:
        kept[key] = make()
    return cast("T", kept[key])


@dataclass(frozen=True)
class Path:
    """A way from nothing to the whole picture, or back, along the order of a map.

    Attributes:
        rising: Whether the picture appears, or goes.
        hidden: What stands where it is hidden, pixel by pixel; None takes patches away from the model altogether.
        step: Pixels (or patches) at a time, a 224th of them by default.
        shares: Instead of steps: the shares that are shown (rising) or removed, of patches rounded down.
        sign: What of the map orders the cells.
        lowest_first: Begin with the lowest values.
        enlarge: How the map gets the picture's size.
    """

    rising: bool
    hidden: Baseline | None
    step: int | None = None
    shares: tuple[float, ...] | None = None
    sign: Sign = "signed"
    lowest_first: bool = False
    enlarge: Enlarge = "auto"

    def counts(self, cells: int) -> Tensor:
        """How many cells are shown, or removed, at each point."""
        if self.shares is not None:
            rising = all(low <= high for low, high in zip(self.shares, self.shares[1:]))
            if not any(self.shares) or not rising or not all(0 <= share <= 1 for share in self.shares):
                raise InputError(
                    f"shares must lie between 0 and 1, from low to high and not all 0, but {self.shares} was given"
                )
            return torch.tensor([counted(share, cells) for share in self.shares])
        step = -(-cells // 224) if self.step is None else self.step
        if step < 1:
            raise InputError(f"a step must be 1 pixel or more, but {step} was given")
        return torch.arange(0, cells + step, step).clamp_max(cells)

    def fractions(self, counts: Tensor, cells: int) -> Tensor:
        """The shares as they were asked for, or those that the steps make."""
        if self.shares is not None:
            return torch.tensor(self.shares, dtype=torch.float64, device=counts.device)
        return counts.double() / cells


@dataclass(frozen=True, eq=False)
class Answers:
    """What the model answered to K copies of each of B images; (B, K) each.

    Attributes:
        probability: The probability of a class, by whose it is.
        logit: Its logit likewise.
        winner: The class with the largest logit.
    """

    probability: dict[Whose, Tensor]
    logit: dict[Whose, Tensor]
    winner: Tensor


@dataclass(frozen=True, eq=False)
class Walk:
    """The answers along a path.

    Attributes:
        counts: (K,) the cells shown or removed at each point.
        fractions: (K,) their share of all cells; where shares were asked for, those.
        answers: (B, K) what the model said.
        density: (B, K) the share of the map in the cells shown, or still there: of what speaks for the target, or of
            the absolute values where these order the cells.
        pictures: A point's number -> (B, 3, H, W) what the model saw there; None where patches were taken away.
    """

    counts: Tensor
    fractions: Tensor
    answers: Answers
    density: Tensor
    pictures: Callable[[int], Tensor] | None


class Case:
    """Some images on the model's device, their maps, and what is known of them. All that is asked for is kept.

    Args:
        view: The model.
        images: (B, 3, H, W) model inputs.
        maps: (B, rows, columns) at any grid.
        target: What was explained; the predicted classes by default.
        masks: (B, H, W): 1 on the object, 0 beside it, -1 where it does not count.
        labels: (B,) the true classes.
        method: What made the maps.
        others: Pictures to set beside these, for grids; these themselves by default.
        shared: Where to keep what does not depend on the maps, for other cases of the same images and target.
        logits: (B, classes) the model's answers to the images, where they are known.
    """

    def __init__(
        self,
        view: View,
        images: Tensor,
        maps: Tensor,
        target: Target | None = None,
        *,
        masks: Tensor | None = None,
        labels: Tensor | None = None,
        method: Method | None = None,
        others: "Pool | Tensor | None" = None,
        shared: dict[Any, Any] | None = None,
        logits: Tensor | None = None,
    ) -> None:
        self.view, self.method = view, method
        self.images = images.to(view.device, view.dtype)
        self.maps = maps.to(view.device).float() if not maps.is_floating_point() else maps.to(view.device)
        if maps.ndim != 3 or len(maps) != len(images):
            raise InputError(f"there must be one map an image, {len(images)}, but {tuple(maps.shape)} was given")
        if not torch.isfinite(self.maps).all():
            raise InputError("maps must be finite, but some hold NaN or infinite values")
        self.masks = None if masks is None else masks.to(view.device)
        self.labels = None if labels is None else labels.to(view.device)
        self.others = others if isinstance(others, Pool) else Pool(view, self.images if others is None else others)
        self._target = None if target is None else target.to(view.device)
        self._kept: dict[Any, Any] = {}
        self._shared: dict[Any, Any] = {} if shared is None else shared
        if logits is not None:
            self._shared.setdefault("logits", full(logits.to(view.device)))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.images.shape[-2], self.images.shape[-1]

    @property
    def empty(self) -> Tensor:
        """(B,) booleans: maps that hold no evidence, because they have the same value everywhere."""
        flat = self.maps.flatten(1)
        return flat.amax(1) == flat.amin(1)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` gives, made the first time it is asked for under this key."""
        return _once(self._kept, key, make)

    def forget(self) -> None:
        """Let go of all that was kept: much of it refers to the case, and would wait for Python's garbage collector."""
        self._kept.clear()

    # ------------------------------------------------------------------------------------------------------ the map

    def heat(self, sign: Sign = "signed", enlarge: Enlarge = "auto") -> Tensor:
        """(B, H, W): the maps at the size of the images."""
        return self.once(("heat", sign, enlarge), lambda: signed(self._enlarged(enlarge), sign))

    def _enlarged(self, enlarge: Enlarge) -> Tensor:
        if self.maps.shape[1:] == self.size:
            return self.maps
        if enlarge == "auto" and self.method is not None:
            found = self.method.enlarge(self.maps, self.size)
        else:
            mode = "bilinear" if enlarge == "auto" else enlarge
            how: dict[str, Any] = {} if mode == "nearest" else {"align_corners": False}
            found = F.interpolate(self.maps[:, None], self.size, mode=mode, **how)[:, 0]
        # Interpolation must not make an order out of a map that has none.
        flat = self.maps.amax((1, 2), keepdim=True) == self.maps.amin((1, 2), keepdim=True)
        return torch.where(flat, self.maps[:, :1, :1], found)

    def cells(self, sign: Sign = "signed") -> Tensor:
        """(B, patches): the maps at the model's own grid, averaged over its cells where they are finer."""
        grid = self.view.grid_at(self.size)
        maps = self.maps if self.maps.shape[1:] == grid else F.adaptive_avg_pool2d(self.maps[:, None], grid)[:, 0]
        return signed(maps, sign).flatten(1)

    # ------------------------------------------------------------------------------------------------- the answers

    @property
    def clean(self) -> Answers:
        """What the model says of the images themselves, (B, 1) each."""

        def ask() -> Answers:
            return self.read(self.logits, torch.arange(len(self), device=self.view.device), 1)

        return self.once("clean", ask)

    @property
    def logits(self) -> Tensor:
        """(B, classes) of the images themselves."""
        return _once(self._shared, "logits", lambda: logits_of(self.view, self.images))

    @property
    def predicted(self) -> Tensor:
        """(B,) the classes predicted for the images."""
        return self.once("predicted", self._predict)

    def _predict(self) -> Tensor:
        with self.view.still():  # not in inference mode, whose tensors no gradient can use
            return self.logits.argmax(1)

    @property
    def target(self) -> Target:
        """What was explained."""
        return Target(self.predicted) if self._target is None else self._target

    def classes(self, whose: Whose) -> Target:
        """The class whose probability counts, of each image."""
        if whose == "explained":
            return self.target
        if whose == "predicted":
            return Target(self.predicted)
        if self.labels is None:
            raise InputError("the true classes are needed; give them as labels")
        return Target(self.labels)

    def fill(self, baseline: Baseline) -> Tensor:
        """(B, 3, H, W): what stands where the images are hidden."""
        pictures, _ = self._filled(baseline)
        return pictures

    def told(self, baseline: Baseline | None) -> list[str]:
        """A sentence for each image that readers of numbers with this baseline must know, or an empty one."""
        return [""] * len(self) if baseline is None else self._filled(baseline)[1]

    def _filled(self, baseline: Baseline) -> tuple[Tensor, list[str]]:
        return _once(
            self._shared, ("fill", baseline), lambda: baseline.fill_and_tell(self.view, self.images, self.target)
        )

    def read(self, logits: Tensor, which: Tensor, copies: int) -> Answers:
        """Answers from the (B * copies, classes) logits of copies of the images ``which``."""
        return self._answers(self._columns(logits, which), copies)

    def _known(self) -> list[Whose]:
        return [whose for whose in WHOSE if whose != "label" or self.labels is not None]

    def _columns(self, logits: Tensor, which: Tensor) -> Tensor:
        """(M, classes) -> (M, 2 or 3 probabilities, as many logits, the winner): all that a metric may ask for."""
        targets = [self.classes(whose).take(which) for whose in self._known()]
        found = [target.probability(logits) for target in targets] + [target.score(logits) for target in targets]
        return torch.stack([*found, logits.argmax(1).to(found[0].dtype)], 1)

    def _answers(self, columns: Tensor, copies: int) -> Answers:
        known = self._known()
        table = columns.view(len(self), copies, -1).double().unbind(2)
        return Answers(
            probability=dict(zip(known, table)),
            logit=dict(zip(known, table[len(known) :])),
            winner=table[-1].long(),
        )

    def ask(self, canvas: Canvas, shown: Callable[[Tensor, Tensor], Tensor], copies: int) -> Answers:
        """The answers to K copies of every image.

        Args:
            canvas: The images.
            shown: Images (M,) and numbers of copies (M,) -> (M, cells) what is seen of each.
            copies: K.
        """
        return self._answers(self._asked(canvas, shown, copies), copies)

    def _asked(self, canvas: Canvas, shown: Callable[[Tensor, Tensor], Tensor], copies: int) -> Tensor:
        """(B * K, columns) of `_columns`."""
        device = self.view.device
        which = torch.arange(len(self), device=device).repeat_interleave(copies)
        number = torch.arange(copies, device=device).repeat(len(self))
        ask = Responder(canvas, read=self._columns)
        return ask(which, lambda part: shown(which[part], number[part]))

    def walk(self, path: Path) -> Walk:
        """The answers along a path, asked for once."""
        return self.once(path, lambda: self._walk(path))

    def _walk(self, path: Path) -> Walk:
        canvas: Canvas
        if path.hidden is None:
            if self.view.blocks is None:
                raise InputError(
                    f"{self.view.name} has no patch tokens to take away; give a baseline, such as baseline=zero_norm"
                )
            canvas, fill = RemovalCanvas(self.view, self.images), None
        else:
            fill = self.fill(path.hidden)
            canvas = PixelCanvas(self.view, self.images, [fill])
        heat, order, ranks = self._order(path)
        counts = path.counts(heat.shape[1]).to(heat.device)

        def shown(which: Tensor, number: Tensor) -> Tensor:
            return (ranks[which] < counts[number][:, None]) == path.rising

        def picture(k: int) -> Tensor:
            seen = shown(torch.arange(len(self), device=heat.device), torch.full((len(self),), k, device=heat.device))
            assert fill is not None
            return torch.where(seen.view(len(self), 1, *self.size), self.images, fill)

        answers = self._along(path, canvas, shown, counts)
        mass = signed(heat, "positive" if path.sign == "signed" else path.sign).double().gather(1, order).cumsum(1)
        # A map that has nothing has it spread evenly.
        even = torch.arange(1, mass.shape[1] + 1, device=mass.device, dtype=mass.dtype) / mass.shape[1]
        share = torch.where(mass[:, -1:] > 0, mass / mass[:, -1:], even)
        share = torch.cat([share.new_zeros(len(share), 1), share], 1)[:, counts]
        return Walk(
            counts=counts,
            fractions=path.fractions(counts, heat.shape[1]),
            answers=answers,
            density=share if path.rising else 1 - share,
            pictures=None if fill is None else picture,
        )

    def _along(self, path: Path, canvas: Canvas, shown: Callable[[Tensor, Tensor], Tensor], counts: Tensor) -> Answers:
        """The answers at every point. The ends are known where a baseline hides: the image, and the baseline."""
        if path.hidden is None:
            return self.ask(canvas, shown, len(counts))
        hidden, whole = (0, canvas.cells) if path.rising else (canvas.cells, 0)
        inner = ((counts != hidden) & (counts != whole)).nonzero().flatten()
        each = torch.arange(len(self), device=counts.device)
        ends = {whole: self._columns(self.logits, each)}
        if bool((counts == hidden).any()):
            ends[hidden] = self._columns(self._hidden(path.hidden), each)
        width = ends[whole].shape[1]
        table = ends[whole].new_empty(len(self), len(counts), width)
        if len(inner):
            asked = self._asked(canvas, lambda which, number: shown(which, inner[number]), len(inner))
            table[:, inner] = asked.view(len(self), len(inner), width)
        for count, columns in ends.items():
            table[:, counts == count] = columns[:, None]
        return self._answers(table.flatten(0, 1), len(counts))

    def _hidden(self, baseline: Baseline) -> Tensor:
        """(B, classes) of what stands where the images are hidden, asked for once."""
        return _once(self._shared, ("hidden", baseline), lambda: logits_of(self.view, self.fill(baseline)))

    def _order(self, path: Path) -> tuple[Tensor, Tensor, Tensor]:
        """(B, cells) values, the order of the cells, and each one's place in it."""
        key = ("order", path.hidden is None, path.sign, path.lowest_first, path.enlarge)

        def make() -> tuple[Tensor, Tensor, Tensor]:
            pixels = path.hidden is not None
            heat = self.heat(path.sign, path.enlarge).flatten(1) if pixels else self.cells(path.sign)
            order = order_of(-heat if path.lowest_first else heat)
            return heat, order, ranks_of(order).int()  # half the memory to read at every point

        return self.once(key, make)

    # -------------------------------------------------------------------------------------------------- the method

    def explain(
        self,
        images: Tensor,
        target: Target | None = None,
        view: View | None = None,
        method: Method | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """(B, rows, columns) float32: other images, or another model, explained as these were.

        Where memory runs out, fewer go through at a time.

        Args:
            images: (B, 3, H, W) model inputs.
            target: What to explain, as of the case's images by default.
            view: The model, the case's by default.
            method: The method, the case's by default.
            keys: (B,) int64 what the method's random numbers depend on, the images themselves by default.
        """
        method, view = method or self.method, view or self.view
        if method is None:
            raise InputError("the method that made the maps is needed; give a spec or an Explanation, not maps alone")
        target = self.target if target is None else target

        def ask(rows: slice) -> Tensor:
            batch = Batch(images[rows], target.take(rows), None if keys is None else keys[rows])
            return method.maps(view, batch).detach().float()

        # As precisely as the maps of the case were made, or the difference would be the precision's.
        with view.still(turns=True), nullcontext() if method.keeps_half() else view.exactly():
            return torch.cat([maps for _, maps in in_parts(len(images), len(images), ask)])


class Pool:
    """Pictures that can be set beside others, and the model's answers to them, asked for once.

    Args:
        view: The model.
        images: (M, 3, H, W) model inputs.
    """

    def __init__(self, view: View, images: Tensor) -> None:
        self.view, self.images = view, images.to(view.device, view.dtype)

    @cached_property
    def logits(self) -> Tensor:
        """(M, classes)."""
        return logits_of(self.view, self.images)


def logits_of(view: View, images: Tensor, together: int = 64) -> Tensor:
    """(M, 3, H, W) -> (M, classes), some at a time."""
    with view.still(turns=True), torch.no_grad():
        parts = in_parts(len(images), together, lambda part: full(view.logits(images[part])))
        return torch.cat([found for _, found in parts])


def signed(maps: Tensor, sign: Sign) -> Tensor:
    """Return the part of the maps that counts."""
    return maps if sign == "signed" else maps.relu() if sign == "positive" else maps.abs()
