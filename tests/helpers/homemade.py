"""Small ViTs as one would write them at home, and what the tests of the view compare with."""

import torch
from torch import Tensor, nn

from helpers.zoo import module
from vitrail.model.trace import logits_of

SMALL = "deit_tiny_distilled"  # quick to run, with two prefix tokens


class HandMade(nn.Module):
    """A tiny ViT as one would write it at home: attention is a softmax between two matrix products."""

    class Block(nn.Module):
        def __init__(self, dim: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
            weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
            x = x + self.proj((weights @ v).transpose(1, 2).flatten(2))
            return x + self.mlp(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 21, 24))
        self.layers = nn.ModuleList([self.Block(24, 3) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Assembled(nn.Module):
    """A ViT put together from torch's own nn.TransformerEncoder."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


class Unfolded(nn.Module):
    """A ViT whose patches are cut by reshaping and embedded by a linear layer: no convolution tells the grid."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(3 * 8 * 8, 24)
        self.cls = nn.Parameter(torch.randn(1, 2, 24))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 2, 48, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(24, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = images.shape[2] // 8, images.shape[3] // 8
        cut = (
            images.unflatten(2, (rows, 8)).unflatten(4, (columns, 8)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        )
        tokens = torch.cat([self.cls.expand(len(images), -1, -1), self.embedding(cut)], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens[:, 0])


def own_logits(name: str, images: Tensor) -> Tensor:
    with torch.no_grad():
        return logits_of(module(name)(images))


def half_kept(images: int, patches: int, *, ragged: bool) -> Tensor:
    """Which patches stay: the same number for every image, or another for each."""
    scores = torch.rand(images, patches, generator=torch.Generator().manual_seed(5))
    counts = torch.tensor([patches // 2 - (i * 5 if ragged else 0) for i in range(images)])
    return scores.argsort(1).argsort(1) < counts[:, None]


def near(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())
