"""What is left to do when a library has multiplied, in one pass: cuda/kernels/epilogue.cu.

Sums are float32. They are read once, and tensor scales, bias, activation and the cast to the
output's dtype happen in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.kernels.cuda.enums import Activation as Activations
from blockscale.kernels.cuda.enums import Dtype
from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.numerics import Activation
from blockscale.problem import dtype_name
from blockscale.runtime.cuda import Build, current_stream, function

_THREADS = 128
_VALUES = 4  # columns of a thread, by one load and one store where their places allow it
_MOST_Y = 1 << 12  # CTAs along rows; each takes several where there are more


class EpilogueBranch(Structure):
    """One product before its activation."""

    HEADER = Header("epilogue_arguments", "gemm")
    MEMBERS = (
        Member("const float*", "sums", "[groups, rows, columns]"),
        Member("long long", "sums_row", "elements between rows"),
        Member("long long", "sums_group", "elements between groups"),
        Member("const float*", "tensor_scale", "one per group, or null"),
        Member("long long", "tensor_scale_group", "elements between groups"),
        Member("const void*", "bias", "[groups, columns], or null"),
        Member("long long", "bias_group", "elements between groups"),
        Member("int", "bias_dtype"),
    )
    _fields_ = fields(MEMBERS)


class EpilogueArguments(Structure):
    HEADER = Header("epilogue_arguments", "gemm")
    MEMBERS = (
        Member(EpilogueBranch, "gate", "or the only one"),
        Member(EpilogueBranch, "up"),
        Member("const float*", "x_scale", "[groups, rows], or null"),
        Member("void*", "out", "[groups, rows, columns]"),
        Member("long long", "out_row", "elements between rows"),
        Member("long long", "out_group", "elements between groups"),
        Member("int", "rows"),
        Member("int", "columns"),
        Member("int", "adjacent", "four columns are one load and one store"),
        Member("float", "factor", "of every sum: a power of two"),
        Member("float", "alpha"),
        Member("float", "limit"),
    )
    _fields_ = fields(MEMBERS)


class Sums(NamedTuple):
    """Of one product."""

    sums: Tensor  # float32 [groups, rows, columns]
    tensor_scale: Tensor | None  # float32 [groups]
    bias: Tensor | None = None  # [groups, columns]

    def placed(self) -> Sums:
        """With adjacent columns."""
        if self.bias is None or self.bias.stride(-1) == 1:
            return self
        return self._replace(bias=self.bias.contiguous())


def finish(
    products: Sequence[Sums],  # one, or gate and up
    out: Tensor,  # [groups, rows, columns]
    activation: Activation | None = None,
    x_scale: Tensor | None = None,  # float32 [groups, rows]
    factor: float = 1.0,
) -> None:
    _, rows, columns = out.shape
    products = [product.placed() for product in products]
    gate = _branch(products[0])
    x_scale = None if x_scale is None else x_scale.contiguous()
    alpha, limit = (activation.alpha, activation.limit) if activation else (0.0, 0.0)
    arguments = EpilogueArguments(
        gate,
        _branch(products[1]) if activation else gate,
        None if x_scale is None else x_scale.data_ptr(),
        out.data_ptr(),
        out.stride(1),
        out.stride(0),
        rows,
        columns,
        all(map(_in_fours, (*(each.sums for each in products), out))),
        factor,
        alpha,
        limit,
    )
    kernel = function(epilogue(dtype_name(out.dtype), activation and activation.name), out.device)
    kernel.launch(_grid(out.shape), _THREADS, 0, current_stream(out.device), arguments)


class Finishing:
    """`finish` of a product that has neither bias nor activation, again and again: everything is
    found out but where sums and results are. Sums are adjacent, and start where torch allocates."""

    def __init__(
        self,
        shape: tuple[int, int, int],  # groups, rows, columns
        dtype: torch.dtype,
        device: torch.device,
        tensor_scale: Tensor | None,  # float32 [groups]; kept
        factor: float,
    ) -> None:
        _, rows, columns = self._shape = shape
        self._tensor_scale, self._factor, self._device = tensor_scale, factor, device
        sums = EpilogueBranch(sums_row=columns, sums_group=rows * columns)
        if tensor_scale is not None:
            sums.tensor_scale = tensor_scale.data_ptr()
            sums.tensor_scale_group = tensor_scale.stride(0)
        self._template = bytes(
            EpilogueArguments(
                gate=sums,
                up=sums,
                out_row=columns,
                out_group=rows * columns,
                rows=rows,
                columns=columns,
                adjacent=columns % _VALUES == 0,
                factor=factor,
            )
        )
        self._grid, self._aligned = _grid(shape), _VALUES * dtype.itemsize
        self._kernel = function(epilogue(dtype_name(dtype)), device)

    def __call__(self, sums: Tensor, out: Tensor) -> None:
        """sums, out: of `shape`, or with groups and rows in one dimension."""
        if not out.is_contiguous() or out.data_ptr() % self._aligned:
            whole = sums.view(self._shape), self._tensor_scale
            finish([Sums(*whole)], out.view(self._shape), factor=self._factor)
            return
        arguments = EpilogueArguments.from_buffer_copy(self._template)
        arguments.gate.sums = arguments.up.sums = sums.data_ptr()
        arguments.out = out.data_ptr()
        self._kernel.launch(self._grid, _THREADS, 0, current_stream(self._device), arguments)


def _grid(shape: Sequence[int]) -> tuple[int, int, int]:
    groups, rows, columns = shape
    return -(-columns // (_THREADS * _VALUES)), min(rows, _MOST_Y), groups


def _branch(product: Sums) -> EpilogueBranch:
    sums, scale, bias = product
    return EpilogueBranch(
        sums.data_ptr(),
        sums.stride(1),
        sums.stride(0),
        None if scale is None else scale.data_ptr(),
        0 if scale is None else scale.stride(0),
        None if bias is None else bias.data_ptr(),
        0 if bias is None else bias.stride(0),
        0 if bias is None else Dtype[dtype_name(bias.dtype).upper()],
    )


def _in_fours(tensor: Tensor) -> bool:
    """Whether columns are adjacent, and rows begin and end at multiples of four of them."""
    starts = (tensor.data_ptr() // tensor.element_size(), *tensor.stride()[:-1], tensor.shape[-1])
    return tensor.stride(-1) == 1 and not any(start % _VALUES for start in starts)


@lru_cache(maxsize=64)
def epilogue(dtype: str, activation: str | None = None) -> Build:
    """What `finish` loads."""
    defines: dict[str, str | int] = {
        "BS_DTYPE": Dtype[dtype.upper()].name,
        "BS_ACTIVATION": Activations[activation.upper() if activation else "NONE"].name,
        "BS_THREADS": _THREADS,
    }
    return Build("epilogue.cu", "epilogue", tuple(defines.items()))
