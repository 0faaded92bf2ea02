"""Codes as a bit stream: code i of a row occupies bits [i * b, (i + 1) * b), little-endian.

So 4-bit codes put the even index in the low nibble, four 6-bit codes fill three bytes, and 8-bit
codes are bytes. This is what checkpoints of the float formats hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GROUP = 8  # codes: eight codes of b bits are b bytes


class BitStream:
    name = "bits"
    row_granularity = 1
    k_granularity = _GROUP

    def storage_shape(self, shape: tuple[int, ...], bits: int) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] * bits // 8)

    def pack(self, codes: Tensor, bits: int) -> Tensor:
        """uint8 [..., k], one code per byte -> uint8 [..., k * bits / 8]."""
        if bits == 8:
            return codes.contiguous()
        groups = codes.unflatten(-1, (-1, _GROUP)).to(torch.int64)
        word = torch.zeros_like(groups[..., 0])
        for i in range(_GROUP):
            word |= groups[..., i] << (bits * i)
        return torch.stack([_byte(word >> 8 * j) for j in range(bits)], -1).flatten(-2)

    def unpack(self, storage: Tensor, shape: tuple[int, ...], bits: int) -> Tensor:
        if bits == 8:
            return storage
        groups = storage.unflatten(-1, (-1, bits)).to(torch.int64)
        word = torch.zeros_like(groups[..., 0])
        for j in range(bits):
            word |= groups[..., j] << (8 * j)
        codes = [_byte(word >> bits * i) & ((1 << bits) - 1) for i in range(_GROUP)]
        return torch.stack(codes, -1).flatten(-2)

    def slice_rows(self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        return storage[..., start:stop, :]


def _byte(word: Tensor) -> Tensor:
    return (word & 255).to(torch.uint8)
