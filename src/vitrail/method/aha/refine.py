"""A few steps of the training objective on each picture by itself, for its own copy of the explainer's weights."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from vitrail.errors import InputError
from vitrail.method.aha.explainer import Explainer
from vitrail.method.aha.objective import Ask, Grid, Objective, at_once
from vitrail.model import Target, View, full
from vitrail.perturb import baseline

REFERENCES = ("dataset_mean", "black_pixel", "rise_blur(kernel=31, sigma=10)")
"""What stands where a picture is hidden, one a step, in turn: three steps see what the paper judges by."""

CELLS = 14
"""Rows and columns of the grid, always the same, so that nothing is left to chance."""

DECAY = 1e-3
"""Weight decay, as in training."""

CALM = 1e-5
"""AdamW's epsilon, larger than usual: a weight whose gradient is rounding noise must not make a full step."""


def refine(
    explainer: Explainer,
    view: View,
    images: Tensor,
    classes: Tensor,
    steps: int,
    *,
    rate: float = 3e-4,
    features: Sequence[Tensor] | None = None,
    objective: Objective | None = None,
) -> Tensor:
    """(B, H, W) maps, an order, after so many steps on every image by itself; the explainer stays as it is.

    Each image gets a copy of all weights that were trained, and all copies learn at once: the forward pass is mapped
    over them, and AdamW, which looks at every number alone, does not mind that they lie in one tensor. There is no
    noise, the grid is fixed, and the temperature is the one that training ended at, as in the paper; the references
    take turns.

    The decoder and the ranks are computed in float64, where the device has it. At a low temperature the ranks amplify
    rounding: in float32 the map of one picture differed by up to 1e-3 between batches.

    Args:
        explainer: On the view's device.
        view: The target.
        images: (B, 3, H, W) inputs of the target.
        classes: (B,) the class to explain of each.
        steps: How many steps.
        rate: The learning rate.
        features: What `Explainer.encode` saw, where it is known already.
        objective: What is minimised; the paper's by default.
    """
    if steps < 0 or rate <= 0:
        raise InputError(f"refining takes 0 steps or more at a rate above 0, but {steps} and {rate} were given")
    objective = objective or Objective()
    with view.still(turns=True), torch.enable_grad():
        images = images.to(view.device, view.dtype).clone()  # what was made in inference mode cannot be in a graph
        classes = classes.to(view.device).clone()
        seen = explainer.encode(view, images).features(classes) if features is None else list(features)
        learned = dict(explainer.named_parameters())
        kept = next(iter(learned.values())).dtype
        wide = kept if view.device.type == "mps" else torch.float64
        weights = {
            name: weight.detach().to(wide).expand(len(images), *weight.shape).clone().requires_grad_()
            for name, weight in learned.items()
        }
        optimiser = torch.optim.AdamW(weights.values(), lr=rate, weight_decay=DECAY, eps=CALM)
        grid = Grid.regular((images.shape[-2], images.shape[-1]), CELLS)
        fills = [baseline(spec).fill(view, images, Target(classes)) for spec in REFERENCES[:steps]]
        ask = asking(view, classes)
        for step in range(steps):
            with view.still():  # the explainer's weights are swapped inside, for all threads
                maps = _maps(explainer, weights, seen, images, classes)
            fill = fills[step % len(fills)]
            losses = objective.loss(
                ask, images, fill, maps, grid, explainer.config["temperature"], at_once=at_once(view.device)
            )
            optimiser.zero_grad()
            losses.total.sum().backward(inputs=list(weights.values()))
            optimiser.step()
        with torch.no_grad(), view.still():
            return _maps(explainer, weights, seen, images, classes).to(kept)


def _maps(
    explainer: Explainer, weights: dict[str, Tensor], features: Sequence[Tensor], images: Tensor, classes: Tensor
) -> Tensor:
    """(B, H, W): each image's map by its own weights, in their precision whatever the target calculates in."""

    def one(own: dict[str, Tensor], seen: list[Tensor], image: Tensor, index: Tensor) -> Tensor:
        found: Tensor = functional_call(explainer, own, ([each[None] for each in seen], image[None], index[None]))
        return found[0]

    with torch.autocast(images.device.type, enabled=False):
        return vmap(one)(weights, list(features), images, classes)


def asking(view: View, classes: Tensor) -> Ask:
    """A function from (M, 3, H, W) pictures and the (M,) images that they are of to (M,) probabilities.

    Args:
        view: The target.
        classes: (B,) the class to explain of each image.
    """

    def ask(pictures: Tensor, which: Tensor) -> Tensor:
        view.meter.begin(backwards=len(pictures) if pictures.requires_grad else 0)
        return Target(classes[which]).probability(full(view.logits(pictures)))

    return ask
