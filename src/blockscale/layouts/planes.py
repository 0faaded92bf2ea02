"""Codes as bit planes: 32 codes of b bits are b little-endian uint32 words, word j holding bit j.

Bit i of a word belongs to code i. Every width from 2 to 5 bits is stored alike, without codes that
straddle words, and a warp ballot or a vector compare produces a word at a time. This is the
canonical storage of codebook formats.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GROUP = 32


class BitPlanes:
    name = "planes"
    row_granularity = 1
    k_granularity = _GROUP

    def storage_shape(self, shape: tuple[int, ...], bits: int) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] * bits // 8)

    def pack(self, codes: Tensor, bits: int) -> Tensor:
        """uint8 [..., k], one code per byte -> uint8 [..., k / 32 * bits * 4]."""
        octets = codes.unflatten(-1, (-1, 4, 8))  # [..., group, byte of the word, bit]
        planes = []
        for j in range(bits):
            plane = (octets >> j) & 1
            byte = torch.zeros_like(plane[..., 0])
            for i in range(8):
                byte |= plane[..., i] << i
            planes.append(byte)
        return torch.stack(planes, -2).flatten(-3)

    def unpack(self, storage: Tensor, shape: tuple[int, ...], bits: int) -> Tensor:
        words = storage.unflatten(-1, (-1, bits, 4))  # [..., group, plane, byte of the word]
        octets = torch.zeros(*words.shape[:-2], 4, 8, dtype=torch.uint8, device=storage.device)
        for j in range(bits):
            for i in range(8):
                octets[..., i] |= ((words[..., j, :] >> i) & 1) << j
        return octets.flatten(-3)

    def slice_rows(self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        return storage[..., start:stop, :]
