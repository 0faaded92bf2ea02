"""What `q[...]` may ask for, and what it means."""

from __future__ import annotations

from typing import Any

from blockscale.formats import Format
from blockscale.layouts import Layout, canonical


def parse_index(
    index: Any, shape: tuple[int, ...], layout: Layout, format: Format
) -> tuple[tuple[Any, ...], slice, slice]:
    """Indices of the leading dimensions, and rows and columns as slices with explicit ends."""
    parts = list(index) if isinstance(index, tuple) else [index]
    missing = len(shape) - sum(part is not None and part is not Ellipsis for part in parts)
    if missing < 0:
        raise IndexError(f"{len(shape) - missing} indices for a tensor of {len(shape)} dimensions")
    # Not `in`, which would compare tensors.
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[at : at + 1] = [slice(None)] * missing
    if any(part is None for part in parts[-2:]):
        raise IndexError("new dimensions come before the rows: x[..., n, k] has none after them")
    *lead, rows, columns = parts
    return (
        tuple(lead),
        _parse_rows(rows, shape[-2], layout),
        _parse_columns(columns, shape[-1], layout, format),
    )


def _parse_rows(rows: Any, n: int, layout: Layout) -> slice:
    step = layout.row_granularity
    if not isinstance(rows, slice):
        raise IndexError(f"rows are cut by slices, got {rows!r}: for one row use [i : i + 1]")
    start, stop, stride = rows.indices(n)
    stop = max(start, stop)
    if stride != 1 or start % step or (stop % step and stop != n):
        raise IndexError(
            f"rows {start}:{stop}:{stride} do not fall on the granularity {step} of layout "
            f"{layout}: pack('rows') first, or cut at multiples of {step}"
        )
    return slice(start, stop)


def _parse_columns(columns: Any, k: int, layout: Layout, format: Format) -> slice:
    """Blocks run along k, and each has one scale: only whole ones can be taken."""
    if not isinstance(columns, slice):
        raise IndexError(f"k is cut by slices at whole blocks, got {columns!r}")
    start, stop, stride = columns.indices(k)
    stop = max(start, stop)
    if (start, stop, stride) == (0, k, 1):
        return slice(0, k)
    if not layout.cuts_k:
        raise IndexError(
            f"k cannot be cut in layout {layout}: cut canonical bytes, as "
            f"q.pack({str(canonical(format))!r})[..., {start}:{stop}], and prepare the part"
        )
    multiple = layout.k_granularity(format)
    if stride != 1 or start % multiple or stop % multiple:
        down, up = start // multiple * multiple, -(-stop // multiple) * multiple
        raise IndexError(
            f"columns {start}:{stop}:{stride} cut a block of {format}: cut at multiples of "
            f"{multiple}, such as {down}:{up}"
        )
    return slice(start, stop)
