"""Which rows of x, and which matrix of weights, a CTA has."""

import triton
import triton.language as tl


@triton.jit
def ragged_rows(group_sizes, tile, m, groups, TILE_M: tl.constexpr, SLOTS: tl.constexpr):
    """(group, first row, end of the group's rows) of a tile of x, from sizes on the device.

    Tiles are counted group by group. The rows of nobody, behind the last group's, are a group of
    their own, number `groups`. A tile that is not there begins where it ends. Negative sizes count
    as zero, and what goes beyond the rows is cut off.
    """
    slot = tl.arange(0, SLOTS)
    size = tl.load(group_sizes + slot, mask=slot < groups, other=0).to(tl.int64)
    size = tl.minimum(tl.maximum(size, 0), m)
    size = tl.where(slot == groups, m, size)
    summed = tl.cumsum(size, 0)
    start, end = tl.minimum(summed - size, m), tl.minimum(summed, m)
    tiles = (end - start + (TILE_M - 1)) // TILE_M
    last = tl.cumsum(tiles, 0)
    group = tl.sum((last <= tile).to(tl.int32), 0)
    mine = slot == group
    before = tl.sum(tl.where(mine, last - tiles, 0), 0)
    first = tl.sum(tl.where(mine, start, 0), 0) + (tile - before) * TILE_M
    return group, first, tl.sum(tl.where(mine, end, 0), 0)
