"""What `q[...]` may ask for, and what it means."""

from __future__ import annotations

from typing import Any

from blockscale.layouts import Layout


def parse_index(
    index: Any, shape: tuple[int, ...], layout: Layout
) -> tuple[tuple[Any, ...], slice]:
    """Indices of the leading dimensions, and the rows as a slice with explicit ends."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):  # not `in`, which would compare tensors
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    if len(parts) > len(shape):
        raise IndexError(f"{len(parts)} indices for a tensor of {len(shape)} dimensions")
    parts += [slice(None)] * (len(shape) - len(parts))
    *lead, rows, columns = parts
    if not isinstance(columns, slice) or columns.indices(shape[-1]) != (0, shape[-1], 1):
        raise IndexError("k cannot be cut: quantise the part you need, or dequantize first")
    n, step = shape[-2], layout.row_granularity
    if not isinstance(rows, slice):
        raise IndexError(f"rows are cut by slices, got {rows!r}: for one row use [i : i + 1]")
    start, stop, stride = rows.indices(n)
    stop = max(start, stop)
    if stride != 1 or start % step or (stop % step and stop != n):
        raise IndexError(
            f"rows {start}:{stop}:{stride} do not fall on the granularity {step} of layout "
            f"{layout}: pack('rows') first, or cut at multiples of {step}"
        )
    return tuple(lead), slice(start, stop)
