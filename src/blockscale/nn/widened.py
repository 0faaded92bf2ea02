"""Products in float32 for a while, where the CPU would only emulate 16-bit ones.

Emulated, a product can take a hundred times as long: a model of 135 million weights took 1.5
seconds a token, where float32 takes 5 milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from blockscale.runtime import emulates_bfloat16

_HALVES = (torch.bfloat16, torch.float16)
_PRODUCTS = {
    linear,
    scaled_dot_product_attention,
    torch.matmul,
    torch.bmm,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.bmm,
}


@contextmanager
def widened() -> Iterator[None]:
    """Operands are cast at each call and let go: beside the model, one weight is in float32."""
    if not emulates_bfloat16("cpu"):
        yield
        return
    with _InFloat32():
        yield


class _InFloat32(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        if func not in _PRODUCTS or not any(_is_narrow(each) for each in given):
            return func(*args, **kwargs)
        dtype = next(each.dtype for each in given if _is_narrow(each))
        wide = {name: _widen(each) for name, each in kwargs.items()}
        return func(*map(_widen, args), **wide).to(dtype)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _HALVES and value.device.type == "cpu"


def _widen(value: Any) -> Any:
    return value.float() if _is_narrow(value) else value
