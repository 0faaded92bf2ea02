"""Scales in row-major order: what files hold, and the only order that can be sliced anywhere."""

from __future__ import annotations

from torch import Tensor


class RowMajor:
    name = "rows"
    row_granularity = 1

    def storage_shape(self, shape: tuple[int, ...], scale_bytes: int) -> tuple[int, ...]:
        """shape: [..., n, blocks]."""
        return (*shape[:-1], shape[-1] * scale_bytes)

    def pack(self, scale: Tensor, scale_bytes: int) -> Tensor:
        return scale.contiguous()

    def unpack(self, storage: Tensor, shape: tuple[int, ...], scale_bytes: int) -> Tensor:
        return storage

    def slice_rows(self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        return storage[..., start:stop, :]
