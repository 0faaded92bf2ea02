"""What a model weighs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from math import prod

import torch
from torch import Tensor, nn

from blockscale.nn.packed import PackedModule


def model_bytes(model: nn.Module) -> int:
    """Of all parameters and buffers, tied ones once."""
    held = {tensor.data_ptr(): tensor.nbytes for tensor in _tensors(model)}
    return sum(held.values())


def is_quantized(model: nn.Module) -> bool:
    """Whether any of its layers is."""
    return any(isinstance(module, PackedModule) for module in model.modules())


def bits_per_weight(model: nn.Module) -> float:
    """Of the linear layers and experts: the head and embeddings, mostly kept, are left out."""
    size = values = 0
    packed = [module for module in model.modules() if isinstance(module, PackedModule)]
    for q in chain.from_iterable(module.qtensors().values() for module in packed):
        size, values = size + q.nbytes, values + prod(q.shape)
    if values:
        return 8 * size / values
    return 8 * next(model.parameters()).element_size()


def peak_memory(device: torch.device) -> int:
    """The most bytes that were in use so far: of the device, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # not on Windows

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024  # the unit is the system's choice


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return chain(model.parameters(), model.buffers())
