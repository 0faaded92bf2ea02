"""Codes and scales in the order that vector registers of a CPU read them, for every m.

Rows go in tiles of 16, one row to a 32-bit lane; k goes in chunks of 32. A chunk of a tile is b
vectors of 16 little-endian words, so that 32 codes of b bits fill exactly b words of a row. A word
is two halves of 16 bits: the low half holds codes of even k, the high half those of odd k, and one
shift brings the pair (2p, 2p + 1) to the bottom of both. A half has room for 16 // b codes; its
spare bits at the top, taken in word order, are a stream that holds the pairs left over:

    bits                2   3   4   5   6   7   8
    codes to a half     8   5   4   3   2   2   2
    spare bits          0   1   0   1   4   2   0
    pairs left over     0   1   0   1   4   2   0

Scales follow the same tiles: one vector of 16 for each block. Rows are padded to 16 and k to 32,
with zeros. The reader is csrc/cpu_tiles.h.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.layouts.words import as_words

TILE = 16  # rows
CHUNK = 32  # k


class Piece(NamedTuple):
    """`width` bits of the codes of a pair, from bit `at` of them to bit `shift` of word `word`."""

    word: int
    shift: int
    width: int
    at: int


def pieces(bits: int, pair: int) -> list[Piece]:
    """Where the two codes of a pair sit in the words of a chunk, in each half alike."""
    in_half, spare = divmod(16, bits)
    if pair < bits * in_half:
        return [Piece(pair // in_half, bits * (pair % in_half), bits, 0)]
    first = (pair - bits * in_half) * bits
    found = []
    for word in range(first // spare, (first + bits - 1) // spare + 1):
        start, stop = max(first, word * spare), min(first + bits, (word + 1) * spare)
        found.append(Piece(word, bits * in_half + start % spare, stop - start, start - first))
    return found


def _ceil(number: int, step: int) -> int:
    return -(-number // step)


class CpuTileCodes:
    name = "cpu_tiles"
    row_granularity = TILE
    k_granularity = 1

    def storage_shape(self, shape: tuple[int, ...], bits: int) -> tuple[int, ...]:
        return (*shape[:-2], _ceil(shape[-2], TILE), _ceil(shape[-1], CHUNK) * bits * TILE * 4)

    def pack(self, codes: Tensor, bits: int) -> Tensor:
        """uint8 [..., n, k], one code per byte -> uint8 [..., tiles, bytes]."""
        lead, (n, k) = codes.shape[:-2], codes.shape[-2:]
        padded = torch.nn.functional.pad(codes, (0, -k % CHUNK, 0, -n % TILE))
        tiled = padded.reshape(*lead, _ceil(n, TILE), TILE, _ceil(k, CHUNK), CHUNK // 2, 2)
        pairs = tiled.movedim(-4, -1)  # [..., tile, chunk, pair, half, lane]
        words = torch.zeros(*pairs.shape[:-3], bits, TILE, dtype=torch.int32, device=codes.device)
        for pair in range(CHUNK // 2):
            for half in range(2):
                code = pairs[..., pair, half, :].to(torch.int32)
                for word, shift, width, at in pieces(bits, pair):
                    part = (code >> at) & ((1 << width) - 1)
                    words[..., word, :] |= part << (16 * half + shift)
        return words.flatten(-3).view(torch.uint8)

    def unpack(self, storage: Tensor, shape: tuple[int, ...], bits: int) -> Tensor:
        lead, (n, k) = shape[:-2], shape[-2:]
        tiles, chunks = _ceil(n, TILE), _ceil(k, CHUNK)
        words = as_words(storage).reshape(*lead, tiles, chunks, bits, TILE)
        pairs = torch.zeros(
            *lead, tiles, chunks, CHUNK // 2, 2, TILE, dtype=torch.uint8, device=storage.device
        )
        for pair in range(CHUNK // 2):
            for half in range(2):
                for word, shift, width, at in pieces(bits, pair):
                    part = (words[..., word, :] >> (16 * half + shift)) & ((1 << width) - 1)
                    pairs[..., pair, half, :] |= (part << at).to(torch.uint8)
        padded = pairs.movedim(-1, -4).reshape(*lead, tiles * TILE, chunks * CHUNK)
        return padded[..., :n, :k].contiguous()

    def slice_rows(self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        return storage[..., start // TILE : _ceil(stop, TILE), :]


class CpuTileScales:
    name = "cpu_tiles"
    row_granularity = TILE

    def storage_shape(self, shape: tuple[int, ...], scale_bytes: int) -> tuple[int, ...]:
        """shape: [..., n, blocks]."""
        return (*shape[:-2], _ceil(shape[-2], TILE), shape[-1] * TILE * scale_bytes)

    def pack(self, scale: Tensor, scale_bytes: int) -> Tensor:
        """uint8 [..., n, blocks * bytes] -> uint8 [..., tiles, bytes]."""
        lead, n = scale.shape[:-2], scale.shape[-2]
        padded = torch.nn.functional.pad(scale, (0, 0, 0, -n % TILE))
        blocks = scale.shape[-1] // scale_bytes
        tiled = padded.reshape(*lead, _ceil(n, TILE), TILE, blocks, scale_bytes)
        return tiled.transpose(-3, -2).flatten(-3).contiguous()

    def unpack(self, storage: Tensor, shape: tuple[int, ...], scale_bytes: int) -> Tensor:
        lead, (n, blocks) = shape[:-2], shape[-2:]
        tiled = storage.reshape(*lead, _ceil(n, TILE), blocks, TILE, scale_bytes)
        padded = tiled.transpose(-3, -2).reshape(*lead, _ceil(n, TILE) * TILE, blocks * scale_bytes)
        return padded[..., :n, :].contiguous()

    def slice_rows(self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        return storage[..., start // TILE : _ceil(stop, TILE), :]
