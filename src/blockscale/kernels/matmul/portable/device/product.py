"""The kernels: products of some tiles, and what brings the sums of split k together.

Whether there is an up matrix is a fact of the Variant: Triton 3.6 cannot compare a tuple with None.

Weights are the left operand, so that the hardware's large dimension (64 to 128 rows of wgmma and
tcgen05) runs over rows of w, and the small one, 8 and up, over rows of x: sums are [n, m].
"""

import triton
import triton.language as tl

from blockscale.kernels.matmul.portable.device import decode
from blockscale.kernels.matmul.portable.device.epilogue import branch, gated
from blockscale.kernels.matmul.portable.device.rows import ragged_rows


@triton.jit
def _multiplied(values, V: tl.constexpr):
    """In the dtype that is multiplied."""
    if V.multiplied == "bfloat16":
        rounded = values.to(tl.bfloat16)
    elif V.multiplied == "float16":
        rounded = values.to(tl.float16)
    else:
        rounded = values.to(tl.float32)
    return rounded


@triton.jit
def _x_values(x, row, there, tile, k, x_stride, x_blocks, V: tl.constexpr):
    """Rows of x as they are multiplied, [TILE_M, TILE_K]; rows that are not there are zero."""
    values, scale, _ = x
    rows = values + (row * x_stride)[:, None]
    if V.x is None:
        column = tile * V.tile_k + tl.arange(0, V.tile_k)
        inside = there[:, None] & (column < k)[None, :]
        read = tl.load(rows + column[None, :], mask=inside, other=0.0)
    else:
        E: tl.constexpr = V.x
        unscaled = decode.load_unscaled(rows, x_stride, None, tile, V.tile_m, V.tile_k, E)
        scales = decode.load_scales(scale, row, x_blocks, tile, V.tile_k, E)
        read = decode.scaled(unscaled, scales, V.tile_m, V.tile_k, E)
    return _multiplied(read, V)


@triton.jit
def _sum_decoded(
    sums, codes, scale, entries, w_row, length, blocks, x_values, tile, V: tl.constexpr
):
    """Adds a tile of weights, decoded, times a tile of x."""
    W: tl.constexpr = V.w
    unscaled = decode.load_unscaled(codes, length, entries, tile, V.tile_n, V.tile_k, W)
    scales = decode.load_scales(scale, w_row, blocks, tile, V.tile_k, W)
    if V.scales_sums:
        tl.static_assert(V.tile_k == W.block, "sums of one block have one scale")
        product = tl.dot(_multiplied(unscaled, V), tl.trans(x_values), input_precision="ieee")
        sums = sums + product * scales
    else:
        values = _multiplied(decode.scaled(unscaled, scales, V.tile_n, V.tile_k, W), V)
        sums = tl.dot(values, tl.trans(x_values), sums, input_precision="ieee")
    return sums


@triton.jit
def _scale_bytes(codes, E: tl.constexpr):
    """As tensor cores take them: bytes are E8M0, and UE4M3 has a type of its own."""
    if E.scale.mantissa == 3:
        codes = codes.to(tl.float8e4nv, bitcast=True)
    return codes


@triton.jit
def _sum_codes(
    sums, codes, scale, w_row, length, blocks, x, row, tile, x_stride, x_blocks, V: tl.constexpr
):
    """Adds a tile of weights times a tile of x, both as they are stored."""
    x_codes, x_scale, _ = x
    W: tl.constexpr = V.w
    X: tl.constexpr = V.x
    W_NAME: tl.constexpr = W.name
    X_NAME: tl.constexpr = X.name
    x_rows = x_codes + (row * x_stride)[:, None]
    w_packed = decode.load_packed(codes, length, tile, V.tile_k, W.bits)
    x_packed = decode.load_packed(x_rows, x_stride, tile, V.tile_k, X.bits)
    w_scales = decode.load_scale_codes(scale, w_row, blocks, tile, V.tile_k, W)
    x_scales = decode.load_scale_codes(x_scale, row, x_blocks, tile, V.tile_k, X)
    return tl.dot_scaled(
        w_packed,
        _scale_bytes(w_scales, W),
        W_NAME,
        tl.trans(x_packed),
        _scale_bytes(x_scales, X),
        X_NAME,
        sums,
    )


@triton.jit
def _finish(
    sums, up_sums, gate, up, x_scale, group, column, inside, row, there, out, n, out_stride,
    alpha, limit, V: tl.constexpr,
):  # fmt: skip
    """Results of a tile, stored. Rows of nobody have no weights: they become zero."""
    value = branch(sums, gate, x_scale, group, column, inside, row, there, n)
    if V.gated:
        other = branch(up_sums, up, x_scale, group, column, inside, row, there, n)
        ACTIVATION: tl.constexpr = V.activation
        value = gated(value, other, alpha, limit, ACTIVATION)
    place = (row * out_stride)[None, :] + column[:, None]
    mask = inside[:, None] & there[None, :]
    tl.store(out + place, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def product(
    x,  # (numbers or codes, block scales, row scales) of [rows, k]; None where there is no such
    gate,  # (codes, scale, tensor_scale, table, bias) of [groups, n, k]
    up,  # the same, or None
    group_sizes,  # [groups], or None
    out,  # [rows, n]
    partial,  # float32 [splits, 1 or 2, rows, n], or None where k is not split
    m, n, k, groups, rows, x_stride, x_blocks, length, blocks, codes_stride, scales_stride,
    out_stride, alpha, limit,
    V: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of w and x, neighbours share weights; batches; splits of k.

    length, blocks: bytes of codes and number of scales of a row of w. x_stride: elements from row
    to row of x; where it is quantised, as many bytes as a row has."""
    tiles_m = tl.num_programs(0) // tl.cdiv(n, V.tile_n)
    tile_m = tl.program_id(0) % tiles_m
    column = tl.program_id(0) // tiles_m * V.tile_n + tl.arange(0, V.tile_n)
    if V.group_slots:
        group, first_row, end = ragged_rows(group_sizes, tile_m, m, groups, V.tile_m, V.group_slots)
        if first_row >= end:
            return
    else:
        group = tl.program_id(1)
        first_row = group.to(tl.int64) * m + tile_m * V.tile_m
        end = (group.to(tl.int64) + 1) * m
    row = first_row + tl.arange(0, V.tile_m)
    inside, there = column < n, row < end
    belongs = group < groups

    # Rows and columns beyond the end are read from the last one, and their sums are not stored.
    w_row, x_row = tl.minimum(column, n - 1).to(tl.int64), tl.minimum(row, rows - 1)
    matrix = tl.where(belongs, group, 0).to(tl.int64)
    codes_at, scales_at = matrix * codes_stride + (w_row * length)[:, None], matrix * scales_stride
    W: tl.constexpr = V.w
    TILE_N: tl.constexpr = V.tile_n
    TILE_M: tl.constexpr = V.tile_m
    sums = tl.zeros((TILE_N, TILE_M), tl.float32)
    up_sums = sums
    entries = None
    up_entries = None
    if W.element is None:
        entries = decode.load_table(gate[3], W)
        if V.gated:
            up_entries = decode.load_table(up[3], W)
    every = tl.cdiv(k, V.tile_k)
    each = tl.cdiv(every, V.splits)
    begin = tl.program_id(2) * each
    stop = tl.where(belongs, tl.minimum(begin + each, every), begin)
    for tile in range(begin, stop):
        if V.native:
            sums = _sum_codes(
                sums, gate[0] + codes_at, gate[1] + scales_at, w_row, length, blocks, x, x_row,
                tile, x_stride, x_blocks, V,
            )  # fmt: skip
            if V.gated:
                up_sums = _sum_codes(
                    up_sums, up[0] + codes_at, up[1] + scales_at, w_row, length, blocks, x, x_row,
                    tile, x_stride, x_blocks, V,
                )  # fmt: skip
        else:
            x_values = _x_values(x, x_row, there, tile, k, x_stride, x_blocks, V)
            sums = _sum_decoded(
                sums, gate[0] + codes_at, gate[1] + scales_at, entries, w_row, length, blocks,
                x_values, tile, V,
            )  # fmt: skip
            if V.gated:
                up_sums = _sum_decoded(
                    up_sums, up[0] + codes_at, up[1] + scales_at, up_entries, w_row, length, blocks,
                    x_values, tile, V,
                )  # fmt: skip

    mask = inside[:, None] & there[None, :]
    if V.splits > 1:
        each_split = 2 * rows * n if V.gated else rows * n
        place = tl.program_id(2) * each_split + (row * n)[None, :] + column[:, None]
        tl.store(partial + place, sums, mask=mask)
        if V.gated:
            tl.store(partial + rows * n + place, up_sums, mask=mask)
    elif belongs:
        _, _, x_scale = x
        _finish(
            sums, up_sums, gate, up, x_scale, group, column, inside, row, there, out, n,
            out_stride, alpha, limit, V,
        )  # fmt: skip
    else:
        place = (row * out_stride)[None, :] + column[:, None]
        tl.store(out + place, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_splits(
    x, gate, up, out, partial, m, n, groups, rows, out_stride, alpha, limit, V: tl.constexpr
):
    """Results from the sums of parts of k, which are added in their order. The same tiles as of
    `product`; rows are not ragged."""
    tile_m = tl.program_id(0) % tl.cdiv(m, V.tile_m)
    tile_n = tl.program_id(0) // tl.cdiv(m, V.tile_m)
    group = tl.program_id(1)
    column = tile_n * V.tile_n + tl.arange(0, V.tile_n)
    row = group.to(tl.int64) * m + tile_m * V.tile_m + tl.arange(0, V.tile_m)
    inside, there = column < n, row < (group.to(tl.int64) + 1) * m
    mask = inside[:, None] & there[None, :]
    place = (row * n)[None, :] + column[:, None]
    TILE_N: tl.constexpr = V.tile_n
    TILE_M: tl.constexpr = V.tile_m
    sums = tl.zeros((TILE_N, TILE_M), tl.float32)
    up_sums = sums
    each_split = 2 * rows * n if V.gated else rows * n
    for split in range(V.splits):
        sums += tl.load(partial + split * each_split + place, mask=mask, other=0.0)
        if V.gated:
            above = partial + split * each_split + rows * n
            up_sums += tl.load(above + place, mask=mask, other=0.0)
    _, _, x_scale = x
    _finish(
        sums, up_sums, gate, up, x_scale, group, column, inside, row, there, out, n,
        out_stride, alpha, limit, V,
    )  # fmt: skip
