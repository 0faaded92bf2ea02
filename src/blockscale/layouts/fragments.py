"""Codes and scales in the order that the tensor cores of a GPU take them, for every m.

Rows go in tiles of 16, k in units of 64: four steps of 16, each one A operand of `mma.m16n8k16`
(and the register operand of `wgmma`). Lane 4 g + t of a warp holds, of step q, the eight codes

    v      0        1        2        3        4        5        6        7
    row    g        g        g + 8    g + 8    g        g        g + 8    g + 8
    k      2 t      2 t + 1  2 t      2 t + 1  2 t + 8  2 t + 9  2 t + 8  2 t + 9

so a unit is 32 codes to a lane: as many 32-bit words as a code has bits, one lane after the other.
Inside the words, bits stand where decoding wants them: `place` says where, and
src/blockscale/cuda/decode/floats.cuh why.

Scales follow the same tiles, eight blocks at a time: lane 4 g + t holds those of the blocks 2 t and
2 t + 1, first of row g, then of row g + 8. Rows are padded to 16, k to 64 and blocks to 8, with
zeros.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from blockscale.layouts.words import as_words

TILE = 16  # rows
UNIT = 64  # k
BLOCKS = 8  # whose scales stand together


def place(bits: int, folded: bool, step: int, value: int, bit: int) -> tuple[int, int]:
    """Which bit of which word of a lane holds bit `bit` of code `value` of step `step`.

    A code of a table has a nibble of its own, beside that of its pair: bytes of tables are looked
    up by nibbles, and pairs of values by a byte. Two of 2 bits, of neighbouring pairs, share one.
    In every second step, which only nibbles look up, the top bits of 4 are the tops of the bytes
    that they find, of the first four values, and four bits below, of the others. A fifth bit is the
    sign. Floats are shifted to where a 16-bit float has its fields: those of a pair stand in the
    same bits of the two halves of a word.
    """
    pair, half = divmod(value, 2)
    if folded and bits == 4 and bit == 3 and step % 2:
        return step, 8 * (value % 4) + 7 - 4 * (value // 4)
    if folded and bits in (4, 5):
        return (step, 4 * value + bit) if bit < 4 else (4, 16 * half + 4 * step + pair)
    if bits == 2:
        return step // 2, 16 * (step % 2) + 8 * (pair // 2) + 4 * half + 2 * (pair % 2) + bit
    if bits == 3:
        return (step, 4 * value + bit) if step < 3 else (bit, 4 * value + 3)
    if bits == 4:
        return step, _sign_and_three(pair, half, bit)
    if bits == 6:
        word = 3 * (step // 2)
        if bit >= 2:
            return word + step % 2, _sign_and_three(pair, half, bit - 2)
        return word + 2, 16 * half + 4 * pair + 2 * (step % 2) + bit
    if bits == 8:
        return 2 * step + pair % 2, 16 * (pair // 2) + 8 * half + bit
    return divmod((8 * step + value) * bits + bit, 32)  # no kernel reads these: one after the other


# Where a sign, the last one, and the three bits below it stand, by pair. Three pairs come home by a
# shift each; that leaves the fourth eight bits of a word, which one multiplication brings home.
_SIGN_AND_THREE = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (13, 14, 10, 11))


def _sign_and_three(pair: int, half: int, bit: int) -> int:
    if pair == 3:
        half = 1 - half  # it is rotated by 6 bits before
    return 16 * half + _SIGN_AND_THREE[pair][bit]


@lru_cache(maxsize=16)
def _bit_of_storage(bits: int, folded: bool) -> list[tuple[int, int, int, int]]:
    """step, value, bit and where it is in the `bits` words of a lane, in every combination."""
    found = []
    for step in range(4):
        for value in range(8):
            for bit in range(bits):
                word, at = place(bits, folded, step, value, bit)
                found.append((step, value, bit, 32 * word + at))
    return found


def fold(codes: Tensor, bits: int) -> Tensor:
    """Codes of an ascending table as a sign and the distance from its middle; its own inverse is
    `unfold`. A symmetric table then needs half its entries."""
    half = 1 << (bits - 1)
    return torch.where(codes >= half, codes - half, 2 * half - 1 - codes)


def unfold(codes: Tensor, bits: int) -> Tensor:
    half = 1 << (bits - 1)
    return torch.where(codes >= half, 2 * half - 1 - codes, codes + half)


def _ceil(number: int, step: int) -> int:
    return -(-number // step)


class FragmentCodes:
    row_granularity = TILE
    k_granularity = 1

    def __init__(self, name: str, folded: bool) -> None:
        self.name = name
        self.folded = folded

    def storage_shape(self, shape: tuple[int, ...], bits: int) -> tuple[int, ...]:
        return (*shape[:-2], _ceil(shape[-2], TILE), _ceil(shape[-1], UNIT) * 32 * 4 * bits)

    def pack(self, codes: Tensor, bits: int) -> Tensor:
        """uint8 [..., n, k], one code per byte -> uint8 [..., tiles, bytes]."""
        lead, (n, k) = codes.shape[:-2], codes.shape[-2:]
        padded = torch.nn.functional.pad(codes, (0, -k % UNIT, 0, -n % TILE))
        if self.folded:
            padded = fold(padded, bits)
        tiles, units = _ceil(n, TILE), _ceil(k, UNIT)
        # tile, row half, g, unit, step, k half, t, k % 2 -> tile, unit, g, t, (step, value)
        split = padded.reshape(prod(lead), tiles, 2, 8, units, 4, 2, 4, 2)
        values = split.permute(0, 1, 4, 3, 7, 5, 6, 2, 8).reshape(
            prod(lead), tiles, units, 32, 4, 8
        )
        words = torch.zeros(*values.shape[:4], bits, dtype=torch.int32, device=codes.device)
        for step, value, bit, at in _bit_of_storage(bits, self.folded):
            taken = (values[..., step, value] >> bit & 1).to(torch.int32)
            words[..., at // 32] |= taken << (at % 32)
        return words.view(torch.uint8).reshape(*lead, tiles, units * 32 * 4 * bits)

    def unpack(self, storage: Tensor, shape: tuple[int, ...], bits: int) -> Tensor:
        lead, (n, k) = shape[:-2], shape[-2:]
        tiles, units = _ceil(n, TILE), _ceil(k, UNIT)
        words = as_words(storage).reshape(prod(lead), tiles, units, 32, bits)
        values = torch.zeros(*words.shape[:4], 4, 8, dtype=torch.uint8, device=storage.device)
        for step, value, bit, at in _bit_of_storage(bits, self.folded):
            taken = (words[..., at // 32] >> (at % 32) & 1).to(torch.uint8)
            values[..., step, value] |= taken << bit
        split = values.reshape(prod(lead), tiles, units, 8, 4, 4, 2, 2, 2)
        padded = split.permute(0, 1, 7, 3, 2, 5, 6, 4, 8).reshape(*lead, tiles * TILE, units * UNIT)
        codes = padded[..., :n, :k].contiguous()
        return unfold(codes, bits) if self.folded else codes

    def slice_rows(self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        return storage[..., start // TILE : _ceil(stop, TILE), :]


class FragmentScales:
    name = "fragments"
    row_granularity = TILE

    def storage_shape(self, shape: tuple[int, ...], scale_bytes: int) -> tuple[int, ...]:
        """shape: [..., n, blocks]."""
        size = _ceil(shape[-1], BLOCKS) * BLOCKS * TILE * scale_bytes
        return (*shape[:-2], _ceil(shape[-2], TILE), size)

    def pack(self, scale: Tensor, scale_bytes: int) -> Tensor:
        """uint8 [..., n, blocks * bytes] -> uint8 [..., tiles, bytes]."""
        lead, n = scale.shape[:-2], scale.shape[-2]
        blocks = scale.shape[-1] // scale_bytes
        right = -blocks % BLOCKS * scale_bytes
        padded = torch.nn.functional.pad(scale, (0, right, 0, -n % TILE))
        tiles, eights = _ceil(n, TILE), _ceil(blocks, BLOCKS)
        # tile, row half, g, eight, t, parity, byte -> tile, eight, g, t, row half, parity, byte
        split = padded.reshape(prod(lead), tiles, 2, 8, eights, 4, 2, scale_bytes)
        ordered = split.permute(0, 1, 4, 3, 5, 2, 6, 7)
        return ordered.reshape(*lead, tiles, eights * BLOCKS * TILE * scale_bytes).contiguous()

    def unpack(self, storage: Tensor, shape: tuple[int, ...], scale_bytes: int) -> Tensor:
        lead, (n, blocks) = shape[:-2], shape[-2:]
        tiles, eights = _ceil(n, TILE), _ceil(blocks, BLOCKS)
        ordered = storage.reshape(prod(lead), tiles, eights, 8, 4, 2, 2, scale_bytes)
        split = ordered.permute(0, 1, 5, 3, 2, 4, 6, 7)
        padded = split.reshape(*lead, tiles * TILE, eights * BLOCKS * scale_bytes)
        return padded[..., :n, : blocks * scale_bytes].contiguous()

    def slice_rows(self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        return storage[..., start // TILE : _ceil(stop, TILE), :]
