"""Which weights a model has: a hash of them, and a stamp that is cheap to ask for."""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.model.trace import version_of

Stamp = tuple[tuple[int, torch.dtype, int], ...]


def stamp_of(model: nn.Module) -> Stamp:
    """Where the weights lie and how often each was changed."""
    # Not the state_dict, which takes milliseconds to make; torch counts the changes of a tensor.
    own = [*model.parameters(), *model.buffers()]
    return tuple((value.data_ptr(), value.dtype, version_of(value)) for value in own)


def hash_of(model: nn.Module) -> str:
    """A hash of all that the model's ``state_dict`` holds."""
    digest = hashlib.blake2b(digest_size=16)
    for key, value in model.state_dict().items():
        digest.update(key.encode())
        digest.update(_bytes_of(value))
    return digest.hexdigest()


def _bytes_of(value: Any) -> bytes:
    """Quantised layers keep tensors in tuples, and types and numbers beside them."""
    if isinstance(value, Tensor) and not value.is_quantized:
        return value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, Tensor):
        return repr(value.qscheme()).encode() + _bytes_of(value.dequantize())
    return b"".join(map(_bytes_of, value)) if isinstance(value, list | tuple) else repr(value).encode()
