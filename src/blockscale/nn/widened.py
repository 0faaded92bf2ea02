"""Linear layers that compute in float32 for a while, where the CPU only emulates their dtype.

Emulated, a 16-bit product can take a hundred times as long: 1.5 seconds a token was measured for a
model of 135 million weights, where float32 takes 5 milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from blockscale.runtime import emulates_bfloat16

_HALVES = (torch.bfloat16, torch.float16)


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """Weights are cast at each call and let go: beside the model, one is held in float32."""
    narrow = [
        module
        for module in model.modules()
        if type(module) is nn.Linear
        and module.weight.dtype in _HALVES
        and emulates_bfloat16(module.weight.device)
        and "forward" not in vars(module)  # another library has its hands on it
    ]
    for module in narrow:
        vars(module)["forward"] = partial(_in_float32, module)
    try:
        yield
    finally:
        for module in narrow:
            del vars(module)["forward"]


def _in_float32(module: nn.Linear, x: Tensor) -> Tensor:
    bias = None if module.bias is None else module.bias.float()
    return linear(x.float(), module.weight.float(), bias).to(x.dtype)
