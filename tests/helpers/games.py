"""Small float64 classifiers without tokens; the cells of one play a game that can be solved by hand."""

import torch
from torch import Tensor, nn


class Quadratic(nn.Module):
    """The logit of class 0 is m' Q m, m being the mean of each of four cells; that of class 1 is zero."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.pairs = nn.Parameter(torch.randn(4, 4, dtype=torch.float64, generator=generator))

    def forward(self, images: Tensor) -> Tensor:
        means = self.means(images)
        logit = torch.einsum("bi,ij,bj->b", means, self.pairs, means)
        return torch.stack([logit, torch.zeros_like(logit)], 1)

    def means(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 2).mean(1).flatten(1)

    def shapley(self, images: Tensor) -> Tensor:
        """(B, 4): what a cell earns alone, and half of what it earns with each other."""
        means = self.means(images)
        return means * (means @ ((self.pairs + self.pairs.T) / 2)).detach()


class Convolutions(nn.Module):
    """A very small CNN in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        layers = nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU()
        self.features, self.head = nn.Sequential(*layers).double(), nn.Linear(12, 6).double()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))
