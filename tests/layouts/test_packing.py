"""Every layout: unpack(pack(x)) == x, the storage shape, and the documented place of each bit."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.layouts import CODES, SCALES, Layout, canonical, layout


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("name", CODES)
def test_pack_roundtrips(name, bits):
    for shape in ((3, 64), (2, 5, 96), (0, 32), (2, 0, 32)):
        codes = torch.randint(0, 1 << bits, shape, dtype=torch.uint8)
        storage = CODES[name].pack(codes, bits)
        assert tuple(storage.shape) == CODES[name].storage_shape(shape, bits)
        assert storage.dtype == torch.uint8
        assert torch.equal(CODES[name].unpack(storage, shape, bits), codes)


def test_low_nibble_is_the_even_index():
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]], dtype=torch.uint8)
    assert CODES["bits"].pack(codes, 4).tolist() == [[0x21, 0x43, 0x65, 0x87]]


@pytest.mark.parametrize("bits", range(2, 9))
def test_bit_stream_is_little_endian(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, 16)
    number = sum(int(code) << bits * i for i, code in enumerate(codes))
    packed = CODES["bits"].pack(torch.from_numpy(codes.astype(np.uint8))[None], bits)
    assert bytes(packed[0].tolist()) == number.to_bytes(2 * bits, "little")


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_bit_planes_are_words_of_one_bit_each(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, 64)
    packed = CODES["planes"].pack(torch.from_numpy(codes.astype(np.uint8))[None], bits)
    words = packed.numpy().view("<u4").reshape(2, bits)
    for block in range(2):
        for j in range(bits):
            for i in range(32):
                assert (int(words[block, j]) >> i) & 1 == (int(codes[32 * block + i]) >> j) & 1


def test_canonical_layouts():
    assert str(canonical(bs.NVFP4)) == "bits/rows"
    assert str(canonical(bs.KBIT3)) == "planes/rows"
    assert str(canonical(bs.BNB_NF4)) == "planes/rows"


def test_layouts_have_names():
    base = Layout("planes", "rows")
    assert layout("bits/blocked") == Layout("bits", "blocked")
    assert layout("blocked", base) == Layout("planes", "blocked")
    assert layout("bits", base) == Layout("bits", "rows")
    assert layout(base) is base
    for name in ("blokced", "bits/row", "planes"):
        with pytest.raises(ValueError, match=f"unknown layout '{name}': did you mean"):
            layout(name)


def test_a_part_alone_names_no_layout():
    """But it changes one that is there."""
    assert layout("blocked", layout("bits/rows")) == layout("bits/blocked")
    with pytest.raises(ValueError, match=r"unknown layout 'rows': did you mean '[a-z]+/rows'"):
        layout("rows")


def test_a_shape_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="needs k divisible by 32, got 48"):
        canonical(bs.KBIT4).check(bs.KBIT4, (4, 48))
    narrow = bs.KBIT4.replace(block=16)
    with pytest.raises(ValueError, match="planes/rows needs k divisible by 32, got 48"):
        canonical(narrow).check(narrow, (4, 48))
    with pytest.raises(ValueError, match="one byte each"):
        Layout("planes", "blocked").check(bs.BNB_NF4, (4, 64))


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("shape", [(5, 3), (128, 4), (300, 7), (2, 129, 5), (1, 1), (3, 0, 4)])
def test_scales_roundtrip(name, shape):
    scale = torch.randint(0, 256, shape, dtype=torch.uint8)
    storage = SCALES[name].pack(scale, 1)
    assert tuple(storage.shape) == SCALES[name].storage_shape(shape, 1)
    assert torch.equal(SCALES[name].unpack(storage, shape, 1), scale)
