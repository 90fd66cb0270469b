"""What is loaded by name, from a file or as it is, in tests of where models come from."""

import torch
from torch import Tensor, nn

from vitrail.model import View

TINY = "timm/test_vit"  # timm's own model for tests: 6 blocks of width 64, 160 x 160 pixels


def same(view: View, weights: dict[str, Tensor]) -> bool:
    state = view.model.state_dict()
    return state.keys() == weights.keys() and all(torch.equal(state[key], weights[key]) for key in weights)


class Small(nn.Module):
    """A convolutional classifier with batch normalisation."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))
