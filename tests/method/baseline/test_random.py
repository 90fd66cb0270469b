"""The floor, against its recipe."""

import torch

from helpers.oracle import oracle
from helpers.small import build, exact
from helpers.zoo import pictures


@oracle("random")
def test_random_is_drawn_from_the_picture_and_the_seed() -> None:
    """The key is a checksum of the float32 pixels, written here with Python's own whole numbers."""
    images = pictures(2, (64, 64))
    found = exact("random(seed=3)", build("class token"), images.double(), 0)
    for image, one in zip(images, found):
        bits = image.flatten().view(torch.int32).tolist()
        total = sum(value * ((i * 2654435761 + 1013904223) | 1) for i, value in enumerate(bits))
        key = (total ^ (3 * 0x9E3779B97F4A7C15)) & (2**63 - 1)
        assert torch.equal(one, torch.rand(4, 4, generator=torch.Generator().manual_seed(key)))
