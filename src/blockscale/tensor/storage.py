"""Whether tensors can be what a QTensor says: every byte accounted for, before one is read."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Codebook, Format
from blockscale.layouts import Layout

Shape = tuple[int, ...]


def check_storage(
    format: Format, shape: Shape, layout: Layout, fields: Mapping[str, Tensor | None]
) -> None:
    """fields   codes, scale, tensor_scale and codebook, None for those that the format has not"""
    name = f"QTensor({format})"
    if len(shape) < 2 or min(shape) < 0:
        raise ValueError(f"{name}: shape must be [..., n, k], got {shape}")
    if prod(shape) >= 2**62:
        raise ValueError(f"{name}: shape {shape} has more values than can be addressed")
    layout.check(format, shape)
    expected = _expected(format, shape, layout)
    for field, (_, shapes) in expected.items():
        if (fields[field] is None) != (not shapes):
            raise ValueError(f"{name}: {field} is {'missing' if shapes else 'not of this format'}")
    codes = fields["codes"]
    for field, (dtype, shapes) in expected.items():
        if (part := fields[field]) is None:
            continue
        if part.dtype != dtype:
            raise TypeError(f"{name}: {field} must be {dtype}, got {part.dtype}")
        if tuple(part.shape) not in shapes:
            wanted = " or ".join(str(list(each)) for each in shapes)
            raise ValueError(
                f"{name}: {field} must have shape {wanted} for {list(shape)} in layout {layout}, "
                f"got {list(part.shape)}"
            )
        if codes is not None and part.device != codes.device:
            raise ValueError(f"{name}: codes are on {codes.device} but {field} is on {part.device}")


def _expected(
    format: Format, shape: Shape, layout: Layout
) -> dict[str, tuple[torch.dtype, list[Shape]]]:
    """The dtype and the shapes that each field may have; no shape where it must be None."""
    scalars: list[Shape] = [shape[:-2], shape[:-1]] if format.has_tensor_scale else []
    tables: list[Shape] = [(1 << format.element.bits,)] if format.is_codebook else []
    return {
        "codes": (torch.uint8, [layout.code_storage_shape(format, shape)]),
        "scale": (torch.uint8, [layout.scale_storage_shape(format, shape)]),
        "tensor_scale": (torch.float32, scalars),
        "codebook": (torch.float32, tables),
    }


def check_numbers(format: Format, tensor_scale: Tensor | None, codebook: Tensor | None) -> None:
    """The few numbers that a file may have wrong: looked at on the CPU."""
    if tensor_scale is not None:
        ops.check_positive("from_storage", "tensor_scale", tensor_scale)
    if codebook is not None and codebook.device.type == "cpu":
        table = Codebook(bits=format.element.bits, values=tuple(codebook.tolist()))
        fixed = isinstance(format.element, Codebook) and format.element.label
        if fixed and table.values != format.codebook:
            raise ValueError(f"from_storage: {format} has one codebook, and this is another")
