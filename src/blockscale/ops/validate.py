"""Checks that give one clear error: the argument, the numbers and the nearest fix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockscale.formats import Format, parse_spec
from blockscale.layouts import Layout, canonical
from blockscale.ops.operand import Operand, plain
from blockscale.runtime import checks_enabled

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_float(verb: str, name: str, x: Tensor) -> None:
    if x.dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"{verb}: {name} must be float32, bfloat16 or float16, got {x.dtype}: "
            f"cast it first, as in {name}.float()"
        )


def check_out_dtype(verb: str, dtype: torch.dtype) -> None:
    if dtype not in FLOAT_DTYPES:
        raise TypeError(f"{verb}: out_dtype must be float32, bfloat16 or float16, got {dtype}")


def check_block(verb: str, name: str, k: int, format: Format) -> None:
    if k == 0 or k % format.block:
        raise ValueError(
            f"{verb}: {format} needs {name}'s last dimension divisible by {format.block}, got {k}: "
            "pad it or keep this layer unquantised"
        )


def check_devices(verb: str, named: Sequence[tuple[str, torch.device | None]]) -> None:
    present = [(name, device) for name, device in named if device is not None]
    first_name, first = present[0]
    for name, device in present[1:]:
        if device != first:
            raise ValueError(
                f"{verb}: {first_name} is on {first} but {name} is on {device}: move one with .to()"
            )


def check_k(verb: str, x: Operand, w: Operand) -> None:
    k = w.shape[-1]
    if len(x.shape) < 1 or x.shape[-1] != k:
        raise ValueError(f"{verb}: x has k={x.shape[-1] if x.shape else 0} but w has k={k}")


def check_x(verb: str, x: Operand, w: Operand, grouped: bool) -> None:
    check_k(verb, x, w)
    if x.is_plain:
        check_float(verb, "x", x.tensors[0])
    elif x.parsed.layout != canonical(x.parsed.format) and not _blocked_alike(x, w, grouped):
        raise ValueError(
            f"{verb}: x is packed as {x.parsed.layout}; a quantised x must be in its canonical "
            f"layout: x.pack({str(canonical(x.parsed.format))!r})"
        )


def _blocked_alike(x: Operand, w: Operand, grouped: bool) -> bool:
    """Blocked scales of x are taken where those of the weights are blocked, and where the matrices
    of x are those of the product: one, or as many as w has."""
    places = [each.parsed.layout for each in (x, w)]
    matrices = 2 if grouped else len(w.shape)
    return places == [Layout("bits", "blocked")] * 2 and len(x.shape) == matrices


def check_x_tensor_scale(verb: str, x: Operand, x_format: str, scale: Tensor | None) -> None:
    """A given tensor scale for an x that is quantised on the fly: one number, or one per row."""
    if scale is None:
        return
    if not x_format or not parse_spec(x_format).has_tensor_scale:
        raise ValueError(
            f"{verb}: x_tensor_scale needs an x_format with a tensor scale, such as NVFP4; "
            f"got x_format {x_format or None}"
        )
    if scale.dtype != torch.float32 or tuple(scale.shape) not in ((), tuple(x.shape[:-1])):
        raise ValueError(
            f"{verb}: x_tensor_scale must be one float32 number or one per row "
            f"{list(x.shape[:-1])}, got {scale.dtype} {list(scale.shape)}"
        )


def check_positive(verb: str, name: str, scale: Tensor) -> None:
    """Positive and finite; looked at on the CPU, and elsewhere only under BLOCKSCALE_CHECK."""
    if torch.compiler.is_compiling() or scale.device.type == "meta":
        return
    if scale.device.type == "cpu" or checks_enabled():
        bad = ~((scale > 0) & scale.isfinite())
        if bool(bad.any()):
            raise ValueError(
                f"{verb}: {name} must be positive and finite, got {scale[bad].flatten()[0].item()}"
            )


def check_not_negative(verb: str, name: str, values: Tensor) -> None:
    """Looked at where `check_positive` looks."""
    if torch.compiler.is_compiling() or values.device.type == "meta":
        return
    if (values.device.type == "cpu" or checks_enabled()) and bool((values < 0).any()):
        raise ValueError(f"{verb}: {name} must not be negative, got {values.min().item():.6g}")


def check_weight(verb: str, name: str, w: Operand) -> None:
    if len(w.shape) not in (2, 3):
        raise ValueError(f"{verb}: {name} must be [n, k] or [l, n, k], got shape {tuple(w.shape)}")
    check_block(verb, name, w.shape[-1], w.parsed.format)
    scale = w.parts().tensor_scale
    if scale is not None and tuple(scale.shape) != tuple(w.shape[:-2]):
        raise ValueError(
            f"{verb}: {name} has one tensor scale per row, which bs.matmul and bs.linear take: "
            "kernels take one per matrix, so quantise with one tensor_scale= for all rows"
        )
    format, layout = w.parsed
    expected = {
        "codes": layout.code_storage_shape(format, tuple(w.shape)),
        "scale": layout.scale_storage_shape(format, tuple(w.shape)),
    }
    for (part, shape), tensor in zip(expected.items(), w.tensors, strict=False):
        if tuple(tensor.shape) != shape:  # a QTensor is born right, but torch lets tensors change
            raise ValueError(
                f"{verb}: {part} of {name} must be {list(shape)} for {w.kind} {list(w.shape)}, "
                f"got {list(tensor.shape)}: were they changed by .data, set_ or resize_?"
            )


def check_allocated(verb: str, w: Operand) -> None:
    """That the memory is still there: storages can be freed or cut under a tensor."""
    for tensor in w.tensors:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
        needed = (last + 1) * tensor.element_size() if tensor.numel() else 0
        held = tensor.untyped_storage().nbytes()
        if held < needed:
            raise ValueError(
                f"{verb}: a tensor of the weights needs {needed} bytes and its storage has {held}: "
                "was it freed by untyped_storage().resize_?"
            )


def check_bias(verb: str, name: str, bias: Tensor | None, shape: tuple[int, ...]) -> None:
    if bias is None:
        return
    check_float(verb, name, bias)
    if tuple(bias.shape) != shape:
        raise ValueError(f"{verb}: {name} must have shape {shape}, got {tuple(bias.shape)}")


def check_batch(verb: str, x: Operand, w: Operand, name: str = "x") -> None:
    """For w [l, n, k] outside the grouped verbs; the columns of x have been checked."""
    if len(w.shape) == 3 and (len(x.shape) != 3 or x.shape[0] != w.shape[0]):
        raise ValueError(
            f"{verb}: w is a batch of {w.shape[0]} matrices, so {name} must be [{w.shape[0]}, m, "
            f"{x.shape[-1]}], got {tuple(x.shape)}"
        )


def check_groups(
    verb: str, x: Operand, w: Operand, group_sizes: Tensor, name: str = "x", columns: str = "k"
) -> None:
    if len(w.shape) != 3:
        raise ValueError(
            f"{verb}: experts must be [e, n, k], got {tuple(w.shape)}; for one matrix use matmul"
        )
    if len(x.shape) != 2:
        raise ValueError(
            f"{verb}: {name} must be [m, {columns}], rows sorted by expert, got {tuple(x.shape)}"
        )
    if group_sizes.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{verb}: group_sizes must be int32 or int64, got {group_sizes.dtype}")
    if tuple(group_sizes.shape) != (w.shape[0],):
        raise ValueError(
            f"{verb}: group_sizes must have one entry for each of the {w.shape[0]} experts, "
            f"got shape {tuple(group_sizes.shape)}"
        )


def check_group_values(verb: str, sizes: list[int], rows: int) -> None:
    for expert, size in enumerate(sizes):
        if size < 0:
            raise ValueError(f"{verb}: group_sizes[{expert}] is negative: {size}")
    if sum(sizes) > rows:
        raise ValueError(
            f"{verb}: group_sizes sum to {sum(sizes)} but x has {rows} rows: "
            "each row belongs to at most one expert"
        )


def check_gradient(
    grad: Tensor, w: Operand, group_sizes: Tensor | None, dtype: torch.dtype
) -> None:
    """Arguments of input_grad. Of a backward all this was checked before its forward; the op can be
    called by anybody, and kernels take addresses."""
    verb = "input_grad"
    check_weight(verb, "w", w)
    check_float(verb, "grad", grad)
    n = w.shape[-2]
    if grad.dim() < 1 or grad.shape[-1] != n:
        raise ValueError(
            f"{verb}: grad has n={grad.shape[-1] if grad.dim() else 0} but w has n={n}"
        )
    if group_sizes is None:
        check_batch(verb, plain(grad), w, "grad")
    else:
        check_groups(verb, plain(grad), w, group_sizes, "grad", "n")
    check_out_dtype(verb, dtype)
    sizes_device = None if group_sizes is None else group_sizes.device
    check_devices(verb, [("grad", grad.device), ("w", w.device), ("group_sizes", sizes_device)])
