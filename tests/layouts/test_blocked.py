"""Scales for tensor cores: the known answers, the padding, and one formula for everything."""

from itertools import product

import pytest
import torch

import blockscale as bs
from blockscale.layouts import SCALES, atom_view, blocked_scales, scale_atom, scale_layout

KNOWN = {
    (128, 64, 1): "(((32,4),1),((16,4),1),(1,1)):(((16,4),512),((0,1),512),(0,512))",
    (128, 128, 1): "(((32,4),1),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,1024))",
    (256, 64, 1): "(((32,4),2),((16,4),1),(1,1)):(((16,4),512),((0,1),512),(0,1024))",
    (256, 128, 1): "(((32,4),2),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,2048))",
}


@pytest.mark.parametrize("shape", KNOWN)
def test_known_answers(shape):
    assert str(scale_layout(shape, bs.NVFP4)) == KNOWN[shape]


def test_atoms():
    assert str(scale_atom(16)) == "((32,4),(16,4)):((16,4),(0,1))"
    assert str(scale_atom(32)) == "((32,4),(32,4)):((16,4),(0,1))"
    assert str(scale_atom(16, "mn")) == "((16,4),(32,4)):((0,1),(16,4))"
    with pytest.raises(ValueError, match="scale_atom: major must be 'k' or 'mn', got 'K'"):
        scale_atom(16, "K")


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("vector", [16, 32])
@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("tiles", [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_size_is_the_tensors_and_every_scale_has_a_byte(tiles, major, vector, batches):
    rows, k = 128 * tiles[0], 4 * vector * tiles[1]
    shape = (rows, k, batches) if major == "k" else (k, rows, batches)
    whole = scale_layout(shape, vector, major)
    assert whole.size == rows * k * batches
    assert whole.cosize == rows * k * batches // vector
    coordinate = (
        (lambda r, c, b: (r, c * vector, b))
        if major == "k"
        else (lambda r, c, b: (c * vector, r, b))
    )
    # An offset is the sum of those of its coordinates, which a few places show.
    by_row = [whole(*coordinate(r, 0, 0)) for r in range(rows)]
    by_column = [whole(*coordinate(0, c, 0)) for c in range(k // vector)]
    by_batch = [whole(*coordinate(0, 0, b)) for b in range(batches)]
    for r, c, b in product((1, rows - 1), (1, k // vector - 1), (0, batches - 1)):
        assert whole(*coordinate(r, c, b)) == by_row[r] + by_column[c] + by_batch[b]
    seen = {sum(offsets) for offsets in product(by_row, by_column, by_batch)}
    assert seen == set(range(whole.cosize))
    # elements of a block share their scale
    block = [
        (5, 3 * vector + i, 0) if major == "k" else (3 * vector + i, 5, 0) for i in range(vector)
    ]
    assert len({whole(*at) for at in block}) == 1


def published_offset(r, c, columns):
    """The formula as the documentation of tensor cores gives it."""
    tile = r // 128 * -(-columns // 4) + c // 4
    return tile * 512 + r % 32 * 16 + r // 32 % 4 * 4 + c % 4


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (300, 7), (1, 1), (129, 9), (512, 16)])
def test_blocked_bytes_are_where_the_formula_says(rows, columns):
    scale = torch.randint(1, 256, (2, rows, columns), dtype=torch.uint8)
    storage = SCALES["blocked"].pack(scale, 1)
    where = torch.tensor(
        [[published_offset(r, c, columns) for c in range(columns)] for r in range(rows)]
    )
    for i in range(2):
        assert torch.equal(storage[i][where], scale[i])
    assert int((storage == 0).sum()) == storage.numel() - scale.numel()  # the rest is padding


@pytest.mark.parametrize("fmt_", [bs.NVFP4, bs.MXFP8, bs.KBIT4], ids=str)
def test_blocked_scales_of_a_tensor(fmt_):
    q = bs.quantize(torch.randn(3, 200, 256), fmt_)
    storage = blocked_scales(q)
    columns = 256 // fmt_.block
    assert storage.shape == (3, 2 * -(-columns // 4) * 512)
    assert torch.equal(storage, q.pack("blocked").scale)
    assert torch.equal(storage, blocked_scales(q.pack("blocked")))


def test_permuted_view():
    q = bs.quantize(torch.randn(2, 200, 192), bs.NVFP4)  # 12 scale columns
    view = blocked_scales(q, permuted=True)
    assert view.shape == (32, 4, 2, 4, 3, 2)
    for r, c, b in [(0, 0, 0), (31, 3, 1), (32, 4, 0), (127, 11, 1), (128, 5, 0), (199, 7, 1)]:
        assert view[r % 32, r // 32 % 4, r // 128, c % 4, c // 4, b] == q.scale[b, r, c]


def test_the_permuted_view_needs_the_bytes_in_one_piece():
    storage = torch.zeros(2, 1024, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"128 x 4 scales take contiguous \[l, 512\] bytes"):
        atom_view(storage[:, :512], 128, 4)
    with pytest.raises(ValueError, match=r"got \[2, 1024\]"):
        atom_view(storage, 128, 4)
    assert blocked_scales(bs.quantize(torch.randn(0, 64), bs.NVFP4)).shape == (0,)


def test_the_permuted_view_writes_through():
    storage = torch.zeros(1, 512, dtype=torch.uint8)
    atom_view(storage, 128, 4)[3, 2, 0, 1, 0, 0] = 9
    assert storage[0, 3 * 16 + 2 * 4 + 1] == 9


def test_a_tile_is_32_by_4_by_4():
    """The description in words, as one reshape."""
    scale = torch.randint(0, 256, (256, 8), dtype=torch.uint8)
    theirs = scale.view(2, 4, 32, 2, 4).permute(0, 3, 2, 1, 4).reshape(-1)
    assert torch.equal(SCALES["blocked"].pack(scale, 1), theirs)


@pytest.mark.parametrize(
    ("shape", "major", "message"),
    [
        ((128,), "k", r"must be \(rows, k\) or \(rows, k, l\)"),
        ((0, 64), "k", r"must be \(rows, k\)"),
        ((128, 64), "row", "major must be 'k' or 'mn', got 'row'"),
    ],
)
def test_bad_shapes_are_refused(shape, major, message):
    with pytest.raises(ValueError, match=message):
        scale_layout(shape, 16, major)
