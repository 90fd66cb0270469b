"""One view over every classifier: images -> tokens -> blocks -> logits, with nothing in the model changed."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.model import removal
from vitrail.model.anatomy import check, watch
from vitrail.model.anatomy.activations import Activations
from vitrail.model.anatomy.check import taking
from vitrail.model.anatomy.flat import in_a_row
from vitrail.model.anatomy.parts import BlockParts
from vitrail.model.anatomy.watch import Blocks, Features, Layout, Readout
from vitrail.model.fingerprint import Stamp, hash_of, stamp_of
from vitrail.model.inputs import Preprocess
from vitrail.model.kernels.patchwise import Patchwise
from vitrail.model.kernels.route import Passage
from vitrail.model.memo import Memo
from vitrail.model.offers import Offers
from vitrail.model.rules.backward import TRUE, Rule
from vitrail.model.rules.fixednorm import FixedNorm
from vitrail.model.rules.tap import tapped
from vitrail.model.rules.wide import Wide, widened
from vitrail.model.still import Still, take_turns
from vitrail.model.trace import Meter, Need, Trace, first_of, logits_of, normal, pool_among


class View(Still):
    """A classifier seen one way, whatever library it comes from.

    Args:
        model: Any module that maps (B, 3, H, W) images to (B, classes) logits (or an output with ``.logits``).
        name: How the model is called in reports and manifests.
        preprocess: How pictures become the model's inputs.
        classes: Class names, where known.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        preprocess: Preprocess,
        classes: Sequence[str] | None = None,
    ) -> None:
        check.refuse_unmade(name, model)
        super().__init__(model)
        self.name = name
        self.preprocess = preprocess
        self.classes = None if classes is None else tuple(classes)
        self.meter = Meter()
        self._layouts: dict[tuple[int, int], Layout] = {}
        self.counts_pictures = False  # whether what comes behind the blocks wants as many as there are pictures
        self.overwrites = False  # whether it uses tensors again that it has changed in place; found out by relevance
        self.removes: removal.Form | Literal[False] | None = False
        self._fingerprint: tuple[object, str] = (None, "")
        self._joins_graphs = not any(weight.is_inference() for weight in model.parameters())
        self._offers = Offers()
        self.passage = Passage()
        self.memo = Memo()
        with self.still():
            self._inspect()
        if self.classes is not None and len(self.classes) != self.num_classes:
            raise InputError(
                f"{name} answers {self.num_classes} classes, but {len(self.classes)} class names were given"
            )

    @classmethod
    def of(cls, model: nn.Module, *, like: "View", classes: Sequence[str] | None = None) -> "View":
        """A view of another model that stands in for a view's own: one made from its parts, or a changed copy.

        Shared are the name, how pictures become inputs, the classes where no others are given, the lock (both may have
        the same weights), and what `run_like` names. What was found out about the model is not, nor is `memo`.
        """
        take_turns(model, like)
        other = cls(model, name=like.name, preprocess=like.preprocess, classes=classes or like.classes)
        other.run_like(like)
        return other

    def run_like(self, other: "View") -> None:
        """Calculate at another view's precision, by our kernels where that may, and count passes where it counts."""
        self.precision, self.fused, self.meter = other.precision, other.fused, other.meter

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has, or one from a pickle: it counts its own passes, and knows its weights by where they lie."""
        return super().__getstate__() | {"meter": Meter(), "passage": Passage(), "_fingerprint": (None, "")}

    # ---------------------------------------------------------------------------------------------------- facts

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the inputs the model wants."""
        return self.preprocess.size

    @property
    def offers(self) -> frozenset[Need]:
        """What this model can give to a method."""
        return frozenset(need for need in Need if self.can_give(need))

    def can_give(self, need: Need) -> bool:
        """Whether a method can have what it needs; the blocks' parts are looked for only where they are asked for."""
        return self._offers.gives(self, need)

    @property
    def differentiable(self) -> bool:
        """Whether a gradient comes back from the model's answer; tried when it is first asked for."""
        return self._offers.differentiable(self)

    @property
    def parts(self) -> tuple[BlockParts, ...] | None:
        """The linear pieces of the blocks where all have the usual pre-norm form; found anew when weights change."""
        return self._offers.parts(self)

    @property
    def activations(self) -> Activations:
        """The activations of the model's forward pass; looked for when they are first asked for."""
        return self._offers.activations(self)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the native map at the model's own input size."""
        return self.grid_at(self.size)

    def grid_at(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of the native map for inputs of ``size``: patches, else feature cells, else pixels."""
        if self.blocks is not None:
            return self.layout(size).grid
        if self.features is None:
            return size
        if size == self.size:
            return self.features.grid
        with self.still(), taking(self, size):
            found = watch.features_at(watch.watch(self.model, self.blank(size)), size, self.features)
        return size if found is None else found.grid

    @property
    def width(self) -> int:
        """Channels of a token, or of the feature map; 3, the image's own, where there is neither."""

        def make() -> int:
            with self.meter.apart(), torch.no_grad():
                entry = self._trace(self.blank(self.size), TRUE, False, False, self.depth).entry
                return self.spatial(entry, self.size).shape[1]

        return self.memo.once("model/view: width", None, make)

    @property
    def depth(self) -> int:
        """The number of transformer blocks, 0 for other models."""
        return 0 if self.blocks is None else len(self.blocks.modules)

    def fingerprint(self) -> str:
        """A hash of the weights, so that results can be traced to the very model they came from."""
        stamp = self.stamp()
        if self._fingerprint[0] != stamp:
            self._fingerprint = (stamp, hash_of(self.model))
        return self._fingerprint[1]

    def stamp(self) -> Stamp:
        """Where the weights lie and how often each was changed: cheap to ask, and another whenever one of them is."""
        return stamp_of(self.model)

    def class_name(self, index: int) -> str:
        """The name of a class, or ``class 12`` where the model has no names."""
        return f"class {index}" if self.classes is None else self.classes[index]

    def __repr__(self) -> str:
        parts = f"{self.depth} blocks" if self.depth else "no token blocks"
        rows, columns = self.grid
        return (
            f"View({self.name}: {self.num_classes} classes, input {self.size[0]} x {self.size[1]}, "
            f"grid {rows} x {columns}, {parts}, offers {', '.join(sorted(self.offers))})"
        )

    # ------------------------------------------------------------------------------------------------- running

    def logits(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, classes): the model's own forward pass."""
        if self.passage.fuses(self) or (self.compiled and self.blocks is not None):
            return self.answer(self.embed(images), self.layout((images.shape[-2], images.shape[-1])))
        # Asked here: inside, gradients are possible again.
        model = self.passage.whole(self.model) if self.compiled and not torch.is_grad_enabled() else self.model
        with self.still(), taking(self, images.shape[2:]):
            self.meter.begin(len(images))
            return check.answered(self, model(self.laid_out(images.to(self.device, self.dtype))), len(images))

    def laid_out(self, images: Tensor) -> Tensor:
        """The same images; for convolutions that are faster so, with a pixel's channels side by side.

        On a CPU that makes up to 4 x as many passes in float32, on a GPU 1.7 x in half precision.
        """
        half = self.precision in ("bf16", "fp16") or torch.finfo(self.dtype).bits < 32
        gains = half if images.device.type == "cuda" else images.device.type == "cpu" and images.dtype != torch.float64
        return images.contiguous(memory_format=torch.channels_last) if gains and self._channels_last else images

    def embed(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, T, D): the tokens that enter the first block, positions included."""
        entered: list[Tensor] = []

        def entering(tokens: Tensor) -> Tensor:
            entered.append(tokens)
            return tokens

        patchwise = Patchwise() if self.passage.fuses(self) else nullcontext()
        bypassed = watch.bypassed(self._need_blocks(), entering)
        with self.still(), taking(self, images.shape[2:]), bypassed, patchwise:
            self.model(images.to(self.device, self.dtype))
        return normal(entered[0])

    def encode(self, tokens: Tensor, layout: Layout, *, start: int = 0, stop: int | None = None) -> list[Tensor]:
        """Run the blocks from ``start`` up to ``stop``: the input of each, then the output of the last."""
        blocks = self._need_blocks()
        states = [tokens]
        with self.still():
            for block, (args, kwargs) in zip(blocks.modules[start:stop], layout.extras[start:stop]):
                states.append(normal(first_of(block(states[-1], *args, **kwargs))))
        return states

    def head(self, tokens: Tensor, layout: Layout) -> Tensor:
        """(B, T, D) tokens that left the last block -> (B, classes). Fewer tokens than the grid has are fine."""
        return self._headed(tokens, layout, lambda: None)

    def pooled(self, tokens: Tensor, layout: Layout, rule: Rule = TRUE) -> tuple[Tensor, Tensor | None]:
        """The same answer, and the (B, heads, queries, T) probabilities of the head's attention pool, if it has one."""
        before: list[int] = []  # attention calls on the way to the blocks
        with tapped(rule, read=True) as tap:
            logits = self._headed(tokens, layout, lambda: before.append(len(tap.attention)))
        return logits, pool_among(tap.attention[before[0] :], len(tokens), layout.tokens)

    def _headed(self, tokens: Tensor, layout: Layout, arrived: Callable[[], object]) -> Tensor:
        # The model's own code runs, on one blank picture; the blocks are passed by, and the tokens slipped in.
        blank = self.blank(layout.size)
        blank = blank.expand(len(tokens), -1, -1, -1) if self.counts_pictures else blank

        def entering(_: Tensor) -> Tensor:
            arrived()
            return tokens

        with self.still(), watch.bypassed(self._need_blocks(), entering):
            return logits_of(self.model(blank))

    def answer(self, tokens: Tensor, layout: Layout, *, plain: bool = False) -> Tensor:
        """(B, T, D) tokens that enter the first block -> (B, classes), and nothing kept on the way.

        Args:
            tokens: All of the layout's, or fewer.
            layout: The layout they were embedded with.
            plain: Let the last block give every token, also where the head reads a few of them.
        """
        self.meter.begin(len(tokens))
        left = self.passage.through(self, self._need_blocks().modules, tokens, layout, plain)
        return self.head(left, layout)

    def layout(self, size: tuple[int, int]) -> Layout:
        """The token layout for inputs of ``size`` pixels (height, width)."""
        if size not in self._layouts:
            self._layouts[size] = check.layout_at(self, self._need_blocks(), size)
        return self._layouts[size]

    def trace(
        self,
        images: Tensor,
        *,
        rule: Rule = TRUE,
        attention: bool = False,
        pixels: bool = False,
        start: int = 0,
        wide: bool = False,
    ) -> Trace:
        """One forward pass in the autograd graph.

        Args:
            images: (B, 3, H, W).
            rule: The backward rule.
            attention: Keep every block's attention probabilities.
            pixels: Reach back to the pixels: the model runs in one go, and no states are kept.
            start: The block whose input tokens the graph begins at: what lies before it costs no memory.
            wide: Calculate in float64, whatever the precision.
        """
        key = (rule.name, attention, pixels, start, wide)

        def make() -> Trace:
            if not wide:
                return self._trace(images.detach().to(self.device, self.dtype), rule, attention, pixels, start)
            with self.still(), torch.autocast(self.device.type, enabled=False), Wide():
                return self._trace(widened(images, self.device), rule, attention, pixels, start)

        return self.kept(images, key, make)

    def _trace(self, images: Tensor, rule: Rule, attention: bool, pixels: bool, start: int) -> Trace:
        self.meter.begin(len(images))
        caught: list[Tensor] = []
        with self.still(), torch.set_grad_enabled(self._joins_graphs), watch.caught(self._entry(), caught):
            if pixels or self.blocks is None:
                # A leaf of its own that shares the numbers; what was made in inference mode cannot be one.
                images = self.laid_out(images.clone() if images.is_inference() else images.detach()).requires_grad_()
                norms = FixedNorm() if images.device.type == "cpu" else nullcontext()
                with check.reaching(self), taking(self, images.shape[2:]), norms, tapped(rule, attention) as seen:
                    logits = check.answered(self, self.model(images), len(images))
                entry = normal(caught[-1]) if caught else images
                return Trace(images, logits, entry, [], seen.attention, seen.values, None)
            layout = self.layout((images.shape[-2], images.shape[-1]))
            with torch.no_grad():
                tokens = self.embed(images)
                with tapped(rule, attention) as seen:
                    early = self.encode(tokens, layout, stop=start)
            tokens = early.pop().requires_grad_()
            with tapped(rule, attention) as later:
                states = early + self.encode(tokens, layout, start=start)
            pool = None
            if attention and self.readout.attention:
                logits, pool = self.pooled(states[-1], layout, rule)
            else:
                with tapped(rule, read=False):
                    logits = self.head(states[-1], layout)
            read = seen.attention + later.attention, seen.values + later.values
            return Trace(images, logits, normal(caught[-1]), states, *read, pool)

    def gradient(
        self, scores: Tensor, inputs: Sequence[Tensor], *, again: bool = False, counted: bool = True
    ) -> list[Tensor]:
        """The gradient of each image's score with respect to each tensor (zeros where it has no influence).

        Args:
            scores: (B,), one number an image.
            inputs: Tensors of a `Trace`.
            again: Keep the graph for another call.
            counted: Whether this is a pass of its own; of many that go back through a block each, one alone is.
        """
        if not scores.requires_grad:
            raise InputError(
                f"{self.name} gives no gradient for this: its answer, or what the target makes of it, is detached from "
                "what it was made of; use a method that needs answers alone, such as rise or occlusion"
            )
        self.meter.begin(backwards=len(scores) * counted)
        again = again or self.remembers
        found = torch.autograd.grad(scores.sum(), list(inputs), retain_graph=again, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g.detach() for x, g in zip(inputs, found)]

    # ------------------------------------------------------------------------------------------------- reading maps

    def spatial(self, tensor: Tensor, size: tuple[int, int]) -> Tensor:
        """`Trace.entry`, or anything shaped like it, as (B, channels, rows, columns)."""
        if self.blocks is not None:
            return self.patch_map(in_a_row(tensor).transpose(1, 2), self.layout(size))
        return tensor if self.features is None else check.as_map(tensor, self.features, self.grid_at(size))

    def patch_map(self, values: Tensor, layout: Layout) -> Tensor:
        """(..., T) or (..., N) token values -> (..., rows, columns); prefix tokens are left out."""
        patches = values[..., values.shape[-1] - layout.patches :]
        return patches.reshape(*patches.shape[:-1], *layout.grid)

    def readout_weights(self, trace: Trace, layout: Layout) -> Tensor:
        """(B, T): how much the head reads each token; it stands in for "the row of the class token" everywhere."""
        state = trace.states[-1]
        if trace.pool is not None:
            return trace.pool.detach().float().mean((1, 2))
        weights = torch.zeros(layout.tokens, device=state.device)
        if self.readout.prefix:
            weights[list(self.readout.prefix)] = 1 / len(self.readout.prefix)
        if self.readout.patches:
            weights[layout.prefix :] = 1 / layout.patches
        return (weights / weights.sum()).expand(len(state), -1)

    # ------------------------------------------------------------------------------------------------- hiding tokens

    def respond(self, tokens: Tensor, keep: Tensor, layout: Layout, form: removal.Form | None = None) -> Tensor:
        """The logits when only some patches are left: see `removal.respond`."""
        form = form or removal.chosen(self, tokens[:1], layout)
        return removal.respond(self, tokens, keep, layout, form)

    # ------------------------------------------------------------------------------------------------- inspection

    def _inspect(self) -> None:
        """Watch the model run once, find its parts, and check that they make up the model."""
        seen = check.look(self)
        self.num_classes = seen.answer.shape[1]
        self.features: Features | None = None
        self.blocks: Blocks | None = None
        self.readout = Readout((), patches=False, attention=False)
        found = check.find_tokens(self, seen)
        self.blocks = None
        self._layouts.clear()
        if found is not None:
            self.blocks, self._layouts[self.size], self.readout = found
        else:
            self.features = check.find_features(self, seen)
        self._channels_last = self.blocks is None and check.takes_channels_last(self, seen.probe, seen.answer)

    def _entry(self) -> nn.Module | None:
        if self.blocks is not None:
            return self.blocks.entry
        return None if self.features is None else self.features.module

    def _need_blocks(self) -> Blocks:
        if self.blocks is None:
            raise InputError(f"{self.name} has no chain of transformer blocks over patch tokens")
        return self.blocks

    def blank(self, size: tuple[int, int]) -> Tensor:
        """(1, 3, H, W): one picture of the mean colour."""
        return torch.zeros(1, 3, *size, device=self.device, dtype=self.dtype)
