"""Models that take packed patches (SigLIP 2 of Hugging Face), as ones that take pictures."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError


class Packed(nn.Module):
    """A model whose input is a row of flattened patches and the grid they came from; it is given pictures here.

    Args:
        model: A module called with ``pixel_values`` (B, patches, values), ``pixel_attention_mask`` and
            ``spatial_shapes``.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        vision = getattr(config, "vision_config", config)
        self.patch: int = vision.patch_size
        side = math.isqrt(vision.num_patches) * self.patch
        self.image_size = (side, side)

    @staticmethod
    def suits(model: nn.Module) -> bool:
        """Whether a module wants its patches packed."""
        vision = getattr(getattr(model, "config", None), "vision_config", None) or getattr(model, "config", None)
        wanted = "spatial_shapes" in inspect.signature(model.forward).parameters
        return wanted and hasattr(vision, "patch_size") and hasattr(vision, "num_patches")

    @property
    def config(self) -> Any:
        """The model's own."""
        return self.model.config

    def forward(self, images: Tensor) -> Any:
        """(B, 3, H, W) -> what the model returns."""
        rows, columns = (side // self.patch for side in images.shape[2:])
        if (rows * self.patch, columns * self.patch) != tuple(images.shape[2:]):
            raise InputError(
                f"the sides of a picture must be whole numbers of {self.patch} pixels, "
                f"but {images.shape[2]} x {images.shape[3]} was given"
            )
        cut = images.unflatten(3, (columns, self.patch)).unflatten(2, (rows, self.patch))
        patches = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # within a patch: row, column, channel
        shapes = torch.tensor([[rows, columns]], device=images.device).expand(len(images), 2)
        mask = torch.ones(patches.shape[:2], dtype=torch.long, device=images.device)
        return self.model(pixel_values=patches, pixel_attention_mask=mask, spatial_shapes=shapes)
