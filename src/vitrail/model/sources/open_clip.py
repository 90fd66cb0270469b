"""Models of open_clip, as classifiers that choose between texts."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, option
from vitrail.model.inputs import Preprocess
from vitrail.model.sources.source import SOURCES, Asked, Found, Source, extra, fetched


class ZeroShot(nn.Module):
    """An image tower that chooses between text prompts: logits are scaled cosines, as CLIP was trained with."""

    def __init__(self, clip: nn.Module, tokenizer: Callable[[list[str]], Tensor], prompts: Sequence[str]) -> None:
        super().__init__()
        self.visual = clip.visual
        self._text = (clip, tokenizer)  # in a tuple: the text tower is a tool here, not a part of the classifier
        device = next(clip.parameters()).device
        with torch.no_grad():
            rows = nn.functional.normalize(clip.encode_text(tokenizer(list(prompts)).to(device)), dim=-1)  # type: ignore[operator]
            self.classifier = nn.Linear(rows.shape[1], len(rows), bias=False)
            self.classifier.weight.copy_(rows * clip.logit_scale.exp())  # type: ignore[operator]
        self.classifier.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, prompts)."""
        found = self.visual(images)  # type: ignore[operator]
        logits: Tensor = self.classifier(
            nn.functional.normalize(found[0] if isinstance(found, tuple) else found, dim=-1)
        )
        return logits

    def with_prompts(self, prompts: Sequence[str]) -> "ZeroShot":
        """The same tower with more prompts to choose from, behind those it has."""
        clip, tokenizer = self._text
        more = ZeroShot(clip, tokenizer, prompts).to(self.classifier.weight)
        weight = torch.cat([self.classifier.weight, more.classifier.weight])
        more.classifier = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        more.classifier.weight = nn.Parameter(weight, requires_grad=False)
        return more


def build(asked: Asked) -> Found:
    """By its architecture, with or without the name of its weights behind a colon."""
    name, fetch, classes = asked.name, asked.fetch, asked.classes
    open_clip = extra("open_clip", "clip")
    architecture, _, tag = name.partition(":")
    if architecture not in open_clip.list_models():
        near = difflib.get_close_matches(architecture, open_clip.list_models(), n=2, cutoff=0.5)
        raise InputError(
            f"open_clip has no model called {architecture!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    if not classes:
        raise InputError(
            f"open_clip/{name} chooses between texts: say which, for example "
            + option("classes", ["a photo of a cat", "a photo of a dog"])
        )
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    tag = tag or ("openai" if "openai" in tags else tags[0] if tags else "")
    made = fetched(f"open_clip/{name}", fetch)
    clip = made(lambda: open_clip.create_model(architecture, pretrained=(tag or None) if fetch else None))
    clip.eval()
    return zero_shot(clip, open_clip.get_tokenizer(architecture), classes, f"open_clip/{name}")


def zero_shot(clip: nn.Module, tokenizer: Callable[[list[str]], Tensor], prompts: Sequence[str], name: str) -> Found:
    """An open_clip model the user has built already, as a classifier over prompts."""
    visual: Any = clip.visual
    size = visual.image_size if isinstance(visual.image_size, tuple) else (visual.image_size,) * 2
    mean = getattr(visual, "image_mean", None) or (0.48145466, 0.4578275, 0.40821073)
    std = getattr(visual, "image_std", None) or (0.26862954, 0.26130258, 0.27577711)
    module = ZeroShot(clip, tokenizer, prompts)
    return Found(module, name, Preprocess(size, tuple(mean), tuple(std), 1.0), tuple(prompts))


SOURCES.enter("open_clip", Source("open_clip/ARCHITECTURE", build))
