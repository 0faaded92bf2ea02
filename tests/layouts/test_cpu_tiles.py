"""The cpu_tiles layout: every bit has one place, and native code packs as the definition does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
import ways
from blockscale.formats import INT8
from blockscale.kernels.native import native_configs
from blockscale.kernels.repack.cpu import CPU_TILES, can_pack, pack
from blockscale.layouts import CODES, SCALES, canonical
from blockscale.layouts.cpu_tiles import CHUNK, TILE, pieces

CODE, SCALE = CODES["cpu_tiles"], SCALES["cpu_tiles"]
needs_native = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_pieces_cover_each_bit_of_a_half_once(bits):
    places = []
    for pair in range(CHUNK // 2):
        found = pieces(bits, pair)
        of_code = [at + i for _, _, width, at in found for i in range(width)]
        assert of_code == list(range(bits))
        places += [(word, shift + i) for word, shift, width, _ in found for i in range(width)]
    assert sorted(places) == [(word, bit) for word in range(bits) for bit in range(16)]


def test_the_pairs_that_lie_in_one_piece():
    """All but those left over, which the docstring counts."""
    left_over = {2: 0, 3: 1, 4: 0, 5: 1, 6: 4, 7: 2, 8: 0}
    for bits, pairs in left_over.items():
        assert [len(pieces(bits, pair)) for pair in range(16 - pairs)] == [1] * (16 - pairs)
        assert all(len(pieces(bits, pair)) > 1 for pair in range(16 - pairs, 16))


shapes = st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 70))


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 8), shapes, st.integers(0, 2**31))
def test_codes_roundtrip(bits, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(1 << bits, shape, dtype=torch.uint8, generator=generator)
    storage = CODE.pack(codes, bits)
    batch, n, k = shape
    assert storage.dtype == torch.uint8
    assert tuple(storage.shape) == CODE.storage_shape(shape, bits)
    assert storage.shape == (batch, -(-n // TILE), -(-k // CHUNK) * bits * TILE * 4)
    assert torch.equal(CODE.unpack(storage, shape, bits), codes)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 4]), shapes, st.integers(0, 2**31))
def test_scales_roundtrip(scale_bytes, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    batch, n, blocks = shape
    stored = (batch, n, blocks * scale_bytes)
    scale = torch.randint(256, stored, dtype=torch.uint8, generator=generator)
    storage = SCALE.pack(scale, scale_bytes)
    assert tuple(storage.shape) == SCALE.storage_shape(shape, scale_bytes)
    assert torch.equal(SCALE.unpack(storage, shape, scale_bytes), scale)


def test_the_documented_place_of_a_code():
    """Row 3, column 5 of 4 bits: pair 2, so word 0, bit 8 of the upper half; lane 3."""
    codes = torch.zeros(16, 32, dtype=torch.uint8)
    codes[3, 5] = 0xB
    words = CODE.pack(codes, 4).view(torch.int32)[0]
    assert words.nonzero().tolist() == [[3]]
    assert words[3].item() & 0xFFFFFFFF == 0xB << (16 + 8)


def test_padding_is_zero():
    storage = CODE.pack(torch.full((17, 40), 15, dtype=torch.uint8), 4)
    whole = CODE.unpack(storage, (32, 64), 4)
    assert (whole[:17, :40] == 15).all()
    assert not whole[17:].any()
    assert not whole[:, 40:].any()


@pytest.mark.parametrize(("start", "stop"), [(0, 16), (16, 48), (32, 40), (0, 40), (16, 16)])
def test_rows_are_cut_in_tiles(start, stop):
    codes = torch.randint(32, (2, 40, 64), dtype=torch.uint8)
    cut = CODE.slice_rows(CODE.pack(codes, 5), codes.shape, start, min(stop, 40))
    rows = codes[:, start:stop]
    assert torch.equal(CODE.unpack(cut, tuple(rows.shape), 5), rows)
    scale = torch.randint(256, (2, 40, 3 * 4), dtype=torch.uint8)
    cut = SCALE.slice_rows(SCALE.pack(scale, 4), (2, 40, 3), start, min(stop, 40))
    assert torch.equal(SCALE.unpack(cut, (2, len(rows[0]), 3), 4), scale[:, start:stop])


def test_a_prepared_tensor_is_cut_at_tiles_only():
    q = bs.quantize(torch.randn(3, 40, 64), bs.NVFP4).pack("cpu_tiles/cpu_tiles")
    assert q[1, 16:].dequantize().equal(q.dequantize()[1, 16:])
    with pytest.raises(IndexError, match="do not fall on the granularity 16"):
        q[1, 8:16]


# --- native code ---------------------------------------------------------------------------------


@pytest.fixture(params=ways.ISAS or [None])
def isa(request):
    with ways.Way("cpu", request.param).only():
        yield request.param


def any_bytes(format, shape):
    """Canonical storage of every code and every scale."""
    layout, (groups, n, k) = canonical(format), shape
    codes = torch.randint(1 << format.element.bits, shape, dtype=torch.uint8)
    width = k // format.block * format.scale.bits // 8
    return layout.pack_codes(codes, format), torch.randint(256, (groups, n, width)).byte()


def check_repack(format, codes, scale, shape):
    now = canonical(format)
    assert can_pack(format, now)
    packed, scales = pack(codes, scale, format, now, shape, native_configs()[0])
    assert torch.equal(packed, CPU_TILES.pack_codes(now.unpack_codes(codes, format, shape), format))
    assert torch.equal(scales, CPU_TILES.pack_scale(now.unpack_scale(scale, format, shape), format))


@needs_native
def test_native_code_packs_as_the_definition(isa, fmt):
    step = max(fmt.block, 32 if fmt.is_codebook else 8)
    for shape in ((1, 1, step), (3, 33, 5 * step), (2, 16, 256), (1, 100, 7 * step)):
        check_repack(fmt, *any_bytes(fmt, shape), shape)


@needs_native
def test_native_code_packs_codes_of_every_width(isa):
    widths = [bs.KBIT2, bs.KBIT3, *(bs.MXFP4.replace(name="any", element=f"e2m{m}") for m in
                                    range(1, 5)), INT8]  # fmt: skip
    assert [format.element.bits for format in widths] == list(range(2, 9))
    for format in widths:
        check_repack(format, *any_bytes(format, (2, 19, 160)), (2, 19, 160))


@needs_native
def test_native_code_packs_from_strided_bytes(isa):
    for format in (bs.NVFP4, bs.KBIT3, bs.MXFP6_E2M3, bs.BNB_NF4):
        codes, scale = any_bytes(format, (5, 50, 192))
        for cut in (slice(None, None, 2), slice(1, 4)):
            some, few = codes[cut, 7:40], scale[cut, 7:40]
            check_repack(format, some, few, (len(some), 33, 192))
        turned = codes.mT.contiguous().mT, scale.mT.contiguous().mT  # columns are not adjacent
        check_repack(format, *turned, (5, 50, 192))


@needs_native
def test_prepare_is_that_packing(isa, fmt):
    q = bs.quantize(torch.randn(2, 21, 256), fmt)
    prepared = q.prepare()
    assert prepared == q
    assert torch.equal(prepared.dequantize(), q.dequantize())
    assert prepared.pack(q.layout).codes.equal(q.codes)


@pytest.mark.parametrize("place", ["cpu_tiles", "fragments"])
def test_storage_at_an_odd_address_is_unpacked(place):
    q = bs.quantize(torch.randn(48, 128), bs.MXFP8).pack(bs.layouts.Layout(place, place))
    memory = torch.empty(q.codes.numel() + 1, dtype=torch.uint8)
    odd = memory[1:].view(q.codes.shape).copy_(q.codes)
    assert bs.QTensor(q.format, q.shape, odd, q.scale, None, None, q.layout) == q
