"""The order of tensor-core fragments: every bit has one place, and lanes hold what `mma` takes."""

import pytest
import torch

from blockscale.layouts import CODES, SCALES
from blockscale.layouts.fragments import fold, place, unfold


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("bits", range(2, 9))
def test_every_bit_has_its_own_place(bits, folded):
    places = {
        place(bits, folded, step, value, bit)
        for step in range(4)
        for value in range(8)
        for bit in range(bits)
    }
    assert places == {(word, bit) for word in range(bits) for bit in range(32)}


def test_a_lane_holds_its_rows_and_columns():
    """A code that is not zero lights up one lane, the one that `mma` asks for it."""
    for row, k in ((0, 0), (3, 5), (8, 0), (13, 14), (5, 9), (15, 63)):
        codes = torch.zeros(16, 64, dtype=torch.uint8)
        codes[row, k] = 15
        words = CODES["fragments"].pack(codes, 4).view(torch.int32).reshape(32, 4)
        lane, step = words.nonzero()[0].tolist()
        assert (lane // 4, lane % 4, step) == (row % 8, k % 8 // 2, k // 16)


@pytest.mark.parametrize("bits", range(2, 9))
def test_folding_is_a_sign_and_a_distance(bits):
    codes = torch.arange(1 << bits, dtype=torch.uint8)
    folded = fold(codes, bits)
    half = 1 << (bits - 1)
    assert torch.equal(unfold(folded, bits), codes)
    assert torch.equal(folded >= half, codes < half)
    assert torch.equal(fold(codes.flip(0), bits) % half, folded % half)


def test_scales_of_eight_blocks_stand_together():
    scale = torch.arange(16 * 8, dtype=torch.uint8).reshape(16, 8)
    packed = SCALES["fragments"].pack(scale, 1).reshape(8, 4, 4)
    for g in range(8):
        for t in range(4):
            wanted = [*scale[g, 2 * t : 2 * t + 2], *scale[g + 8, 2 * t : 2 * t + 2]]
            assert packed[g, t].tolist() == [int(each) for each in wanted]
