"""Where sums and scales lie in TMEM, and codes in swizzled shared memory."""

import pytest

from blockscale.layouts import DecodedMemory, ScaledMemory, swizzled_panel
from blockscale.layouts.tensor_memory import COLUMNS, LANES, Region, scales, sums


def place(offset):
    """lane, column, byte of the 32 bits."""
    return offset // (4 * COLUMNS), offset // 4 % COLUMNS, offset % 4


@pytest.mark.parametrize(
    ("scale_groups", "unshared", "scale_regions"),
    [(1, 524, [(384, 388), (388, 396)]), (2, 536, [(384, 392), (392, 408)])],
)
def test_accumulators_that_share_128_columns(scale_groups, unshared, scale_regions):
    """The published arrangement for MXFP8: 0 .. 255 and 128 .. 383, the scales of a stage behind
    them; side by side they would need more than 512 columns."""
    memory = ScaledMemory(256, 2, shared=128, sets=1, scale_groups=scale_groups)
    assert memory.unshared == unshared > COLUMNS
    assert list(memory.regions()) == [
        Region("accumulator 0", 0, 256),
        Region("accumulator 1", 128, 384),
        Region("set 0, scales of x", *scale_regions[0]),
        Region("set 0, scales of w", *scale_regions[1]),
    ]
    assert memory.used == scale_regions[1][1]


def test_sums_have_a_lane_for_a_row_of_x_and_a_column_for_a_row_of_w():
    layout = sums(256)
    assert place(layout(0, 0)) == (0, 0, 0)
    assert place(layout(5, 130)) == (5, 130, 0)
    assert layout.size == LANES * 256


@pytest.mark.parametrize(("rows", "scale_groups"), [(128, 1), (256, 1), (256, 4)])
def test_scales_of_32_rows_to_a_column_and_four_blocks_to_a_cell(rows, scale_groups):
    """As blocked atoms are spread: row r of an atom to lane r % 32, column r / 32, block to byte;
    atoms of rows first, then groups along k."""
    layout = scales(rows, scale_groups)
    for row in range(rows):
        for block in range(4 * scale_groups):
            group, byte = divmod(block, 4)
            atom, rest = divmod(row, 128)
            column = 4 * (group * (rows // 128) + atom) + rest // 32
            assert place(layout(row, block)) == (rest % 32, column, byte)


def test_a_set_takes_as_many_columns_as_its_scales():
    memory = ScaledMemory(256, 2, shared=96, sets=2, scale_groups=4)
    each = [4 * groups for groups in (4, 2 * 4)]  # 128 rows of x, 256 of w, four groups
    assert (memory.x_columns, memory.set_columns) == (each[0], sum(each))
    assert {place(offset)[1] for offset in scales(256, 4).offsets()} == set(range(each[1]))


def test_decoded_weights_take_a_column_for_two_k():
    memory = DecodedMemory(256, 2, shared=96, sets=3, tile_k=64)
    assert [each.start for each in memory.regions()] == [0, 160, 416, 448, 480]
    assert memory.used == COLUMNS
    assert "3 sets of 32 for weights" in str(memory)


def test_eight_rows_of_a_swizzled_panel_meet_in_no_bank():
    panel = swizzled_panel(16)
    assert sorted(panel.offsets()) == list(range(16 * 128))
    for first in (0, 8):
        for chunk in range(8):
            begins = [panel(first + r, 16 * chunk) for r in range(8)]
            assert sorted(each % 128 // 16 for each in begins) == list(range(8))
    assert [panel(1, 16 * c) for c in range(3)] == [128 + 16, 128, 128 + 48]
