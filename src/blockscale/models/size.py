"""What a model weighs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from math import prod

import torch
from torch import Tensor, nn

from blockscale.nn.adapters import find_adapter
from blockscale.nn.fused import is_fused
from blockscale.nn.packed import PackedModule
from blockscale.nn.selection import selector
from blockscale.tensor import QTensor


def model_bytes(model: nn.Module) -> int:
    """Of all parameters and buffers, tied ones once."""
    held = {tensor.data_ptr(): tensor.nbytes for tensor in _tensors(model)}
    return sum(held.values())


def is_quantized(model: nn.Module) -> bool:
    """Whether any of its layers is."""
    return any(isinstance(module, PackedModule) for module in model.modules())


def bits_per_weight(model: nn.Module) -> float:
    """Of the linear layers and experts, packed or not. What `quantize_` keeps by default (heads,
    routers) and what peft has added count only where they are packed."""
    size = values = 0
    refuses = selector(None)
    for name, module in model.named_modules():
        weights: Iterable[QTensor | Tensor] = ()
        if isinstance(module, PackedModule):
            weights = module.qtensors().values()
        elif isinstance(module, nn.Linear) or is_fused(module):
            kept = refuses(name, module) or find_adapter(model, name)
            parameters = () if kept else module.parameters(recurse=False)
            dims = 2 if isinstance(module, nn.Linear) else 3  # biases have one fewer
            weights = [each for each in parameters if each.dim() == dims]
        for weight in weights:
            size, values = size + weight.nbytes, values + prod(weight.shape)
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
