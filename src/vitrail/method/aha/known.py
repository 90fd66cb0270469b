"""Which pictures an explainer was trained on: numbers that tell pictures apart, as the model sees them."""

import base64

import numpy as np
import torch
from torch import Tensor

from vitrail.method.batch import checksum
from vitrail.model import Preprocess

LEARNED = "the explainer was trained on this very picture, or chosen by it: numbers of aha flatter it here"
"""The note on a map of such a picture."""


def marks(preprocess: Preprocess, images: Tensor) -> Tensor:
    """(B, 3, H, W) model inputs -> (B,) whole numbers, the same for the same pixels on every device.

    Args:
        preprocess: How the inputs were made.
        images: The inputs, in float32 at least: of fewer digits the pixels cannot be found again.
    """
    mean, std = (images.new_tensor(values).view(1, 3, 1, 1) for values in (preprocess.mean, preprocess.std))
    return checksum(((images * std + mean) * 255).round())


def written(numbers: Tensor) -> str:
    """Marks as an explainer's configuration keeps them: sorted, 8 bytes each, in base64.

    Example:
        >>> read(written(torch.tensor([7, -3]))).tolist()
        [-3, 7]
    """
    return base64.b64encode(np.unique(numbers.numpy()).astype("<i8").tobytes()).decode()


def read(text: str) -> Tensor:
    """The marks in a configuration."""
    return torch.from_numpy(np.frombuffer(base64.b64decode(text, validate=True), "<i8").astype(np.int64))
