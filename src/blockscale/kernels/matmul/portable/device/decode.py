"""Rows of codes and block scales, as files hold them, to numbers in float32.

A small float is decoded by placing its exponent and mantissa where float32 has its own, and a
product with a power of two that makes up for the difference of the biases. That is exact, also for
subnormal numbers, which Triton's products of float32 keep.

Functions take pointers to the first byte of each row, [R, 1], how long a row is, and which tile of
TILE_K columns is wanted. Offsets are products of that number with what the compiler knows, and ends
are arguments of the kernel: so the compiler sees what is aligned, and copies 16 bytes at a time.
"""

import triton
import triton.language as tl


@triton.jit
def small_float(code, FLOAT: tl.constexpr):  # int32 -> float32
    """FLOAT: a `SmallFloat`."""
    magnitude_bits: tl.constexpr = FLOAT.exponent + FLOAT.mantissa
    all_ones: tl.constexpr = (1 << magnitude_bits) - 1
    magnitude = code & all_ones
    placed = magnitude << (23 - FLOAT.mantissa)
    if FLOAT.signed:
        # The sign to the top; then down with the rest, which repeats it above the exponent.
        mask: tl.constexpr = (all_ones << (23 - FLOAT.mantissa)) - (1 << 31)
        placed = ((code << (31 - magnitude_bits)) >> (8 - FLOAT.exponent)) & mask
    value = placed.to(tl.float32, bitcast=True) * FLOAT.rebias
    if FLOAT.least != 0.0:
        value = tl.where(magnitude == 0, FLOAT.least, value)
    if FLOAT.infinity >= 0:
        infinite = tl.where(code == magnitude, float("inf"), float("-inf"))
        value = tl.where(magnitude == FLOAT.infinity, infinite, value)
    if FLOAT.first_nan >= 0:
        tested = magnitude if FLOAT.signed else code
        value = tl.where(tested >= FLOAT.first_nan, float("nan"), value)
    return value


@triton.jit
def _bytes(rows, at, length):
    """at: places in a row; zeros where it has ended."""
    return tl.load(rows + at[None, :], mask=(at < length)[None, :], other=0).to(tl.int32)


@triton.jit
def _interleave4(c0, c1, c2, c3):
    return tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))


@triton.jit
def _plane_code(planes, fifth, i: tl.constexpr, BITS: tl.constexpr):
    """Code i of eight: its bits are at i, 8 + i, 16 + i and 24 + i, a fifth at i of `fifth`."""
    bits = (planes >> i) & 0x01010101
    code = (bits | (bits >> 7) | (bits >> 14) | (bits >> 21)) & 15
    if BITS == 5:
        code = code | (((fifth >> i) & 1) << 4)
    return code


@triton.jit
def _plane_codes(rows, length, tile, TILE_K: tl.constexpr, BITS: tl.constexpr):
    """32 codes are BITS words, a word to a plane; each byte of one has a bit of eight codes."""
    byte = tl.arange(0, TILE_K // 8)
    place = tile * (TILE_K // 8 * BITS) + byte // 4 * (4 * BITS) + byte % 4
    planes = _bytes(rows, place, length)
    for plane in tl.static_range(1, 4 if BITS > 4 else BITS):
        planes = planes | (_bytes(rows, place + 4 * plane, length) << (8 * plane))
    fifth = planes
    if BITS == 5:
        fifth = _bytes(rows, place + 16, length)
    even = _interleave4(
        _plane_code(planes, fifth, 0, BITS),
        _plane_code(planes, fifth, 2, BITS),
        _plane_code(planes, fifth, 4, BITS),
        _plane_code(planes, fifth, 6, BITS),
    )
    odd = _interleave4(
        _plane_code(planes, fifth, 1, BITS),
        _plane_code(planes, fifth, 3, BITS),
        _plane_code(planes, fifth, 5, BITS),
        _plane_code(planes, fifth, 7, BITS),
    )
    return tl.interleave(even, odd)


@triton.jit
def _codes_of_six_bits(rows, length, tile, TILE_K: tl.constexpr):
    """Four codes are three bytes."""
    place = tile * (TILE_K // 4 * 3) + 3 * tl.arange(0, TILE_K // 4)
    word = _bytes(rows, place, length)
    word = word | (_bytes(rows, place + 1, length) << 8)
    word = word | (_bytes(rows, place + 2, length) << 16)
    return _interleave4(word & 63, (word >> 6) & 63, (word >> 12) & 63, word >> 18)


@triton.jit
def load_packed(rows, length, tile, TILE_K: tl.constexpr, BITS: tl.constexpr):
    """Bytes of 8-bit codes, or of 4-bit codes two to a byte."""
    WIDTH: tl.constexpr = TILE_K * BITS // 8
    at = tile * WIDTH + tl.arange(0, WIDTH)
    return tl.load(rows + at[None, :], mask=(at < length)[None, :], other=0)


@triton.jit
def _load_codes(rows, length, tile, TILE_K: tl.constexpr, E: tl.constexpr):  # int32 [R, TILE_K]
    """E: an `Encoding`."""
    if E.planes:
        codes = _plane_codes(rows, length, tile, TILE_K, E.bits)
    elif E.bits == 6:
        codes = _codes_of_six_bits(rows, length, tile, TILE_K)
    else:
        codes = load_packed(rows, length, tile, TILE_K, E.bits).to(tl.int32)
        if E.bits == 4:
            codes = tl.interleave(codes & 15, codes >> 4)
    return codes


@triton.jit
def load_table(table, E: tl.constexpr):  # float32 [2^bits]
    """The entries of a codebook."""
    return tl.load(table + tl.arange(0, 1 << E.bits))


@triton.jit
def load_unscaled(
    rows, length, entries, tile, R: tl.constexpr, TILE_K: tl.constexpr, E: tl.constexpr
):
    """What codes mean without their scales, float32 [R, TILE_K]. entries: a codebook's, or None."""
    codes = _load_codes(rows, length, tile, TILE_K, E)
    if E.element is None:
        values = tl.gather(entries, codes.reshape(R * TILE_K), 0).reshape(R, TILE_K)
    else:
        FLOAT: tl.constexpr = E.element
        values = small_float(codes, FLOAT)
    return values


@triton.jit
def load_scale_codes(matrix, row, blocks, tile, TILE_K: tl.constexpr, E: tl.constexpr):
    """[R, TILE_K / block] bytes, or float32. matrix: its first scale; row: [R]."""
    WIDTH: tl.constexpr = TILE_K // E.block
    column = tile * WIDTH + tl.arange(0, WIDTH)
    if E.blocked:
        atom = (row // 128)[:, None] * ((blocks + 3) // 4) + (column // 4)[None, :]
        inside = (row % 32 * 16 + row // 32 % 4 * 4)[:, None] + (column % 4)[None, :]
        place = atom * 512 + inside
    else:
        place = (row * blocks)[:, None] + column[None, :]
    return tl.load(matrix + place, mask=(column < blocks)[None, :], other=0)


@triton.jit
def load_scales(matrix, row, blocks, tile, TILE_K: tl.constexpr, E: tl.constexpr):
    """float32 [R, TILE_K / block]."""
    codes = load_scale_codes(matrix, row, blocks, tile, TILE_K, E)
    if E.scale is None:
        scales = codes
    else:
        FLOAT: tl.constexpr = E.scale
        scales = small_float(codes.to(tl.int32), FLOAT)
    return scales


@triton.jit
def scaled(values, scales, R: tl.constexpr, TILE_K: tl.constexpr, E: tl.constexpr):
    """Values times the scales of their blocks, float32 [R, TILE_K]."""
    in_blocks = values.reshape(R, TILE_K // E.block, E.block) * scales[:, :, None]
    return in_blocks.reshape(R, TILE_K)
