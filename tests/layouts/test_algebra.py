"""Nested shapes and strides, checked as functions: every identity is tried on every coordinate."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.layouts import Strided, Swizzle, tile_to_shape


def test_printing_is_shape_colon_stride():
    assert str(Strided(((32, 4), (16, 4)), ((16, 4), (0, 1)))) == "((32,4),(16,4)):((16,4),(0,1))"
    assert str(Strided(8, 2)) == "8:2"


def test_size_and_cosize():
    layout = Strided((4, (2, 3)), (6, (1, 2)))
    assert (layout.size, layout.cosize) == (24, 1 + 18 + 1 + 4)
    assert Strided(((32, 4), (16, 4)), ((16, 4), (0, 1))).cosize == 512


def test_coordinates_nested_flat_and_mixed():
    layout = Strided(((2, 3), 4), ((1, 10), 100))
    assert layout((1, 2), 3) == 321
    assert layout(5, 3) == 321  # 5 counts through (2, 3): (1, 2)
    assert layout(5 + 6 * 3) == 321
    assert layout(((1, 2), 3)) == 321


def test_bad_coordinates_are_refused():
    layout = Strided((2, 3), (1, 2))
    with pytest.raises(ValueError, match="more nested"):
        layout((0, 1), 2)
    with pytest.raises(ValueError, match="has 3 modes"):
        layout(0, 1, 2)


def test_shape_and_stride_must_be_alike():
    with pytest.raises(ValueError, match=r"shape \(2,3\) and stride 1 are not nested alike"):
        Strided((2, 3), 1)
    with pytest.raises(ValueError, match="extents must be at least 1"):
        Strided((2, 0), (1, 2))


def test_compact_layouts():
    assert str(Strided.ordered((2, 3, 4), (3, 2, 1))) == "(2,3,4):(12,4,1)"
    assert str(Strided.ordered((2, 3, 4), (1, 2, 3))) == "(2,3,4):(1,2,6)"
    assert str(Strided.ordered((2, 3, 4), (2, 1, 3))) == "(2,3,4):(3,1,6)"
    with pytest.raises(ValueError, match="must rank each mode"):
        Strided.ordered((2, 3), (1, 1))


modes = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12])), min_size=1, max_size=4
)


@settings(max_examples=300, deadline=None)
@given(modes)
def test_coalesce_is_the_same_function(pairs):
    layout = Strided(tuple(e for e, _ in pairs), tuple(s for _, s in pairs))
    flat = layout.coalesce()
    assert flat.size == layout.size
    assert list(flat.offsets()) == list(layout.offsets())
    assert len(flat.modes) <= len(layout.modes)


def test_coalesce_joins_what_is_contiguous():
    assert str(Strided((2, (4, 8)), (1, (2, 8))).coalesce()) == "64:1"
    assert str(Strided((2, 1, 4), (1, 99, 2)).coalesce()) == "8:1"
    assert str(Strided((1, 1), (5, 7)).coalesce()) == "1:0"
    assert str(Strided((2, 4), (4, 1)).coalesce()) == "(2,4):(4,1)"


powers = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(powers, st.integers(0, 9)), min_size=1, max_size=3), powers, powers, powers
)
def test_composition_is_composition(pairs, extent, step, second):
    """On power-of-two shapes everything divides, so every composition exists."""
    outer = Strided(tuple(e for e, _ in pairs), tuple(s for _, s in pairs))
    inner = Strided((extent, second), (step, step * extent))
    if inner.cosize > outer.size:
        return
    both = outer.compose(inner)
    assert both.size == inner.size
    assert list(both.offsets()) == [outer(i) for i in inner.offsets()]


small = st.integers(1, 5)
pairs_of = st.lists(st.tuples(small, st.integers(0, 12)), min_size=1, max_size=3)


@settings(max_examples=500, deadline=None)
@given(pairs_of, pairs_of)
def test_a_composition_is_right_or_refused(outer_pairs, inner_pairs):
    outer, inner = (
        Strided(tuple(e for e, _ in pairs), tuple(s for _, s in pairs))
        for pairs in (outer_pairs, inner_pairs)
    )
    if inner.cosize > outer.size:
        return
    try:
        both = outer.compose(inner)
    except ValueError:
        return
    assert list(both.offsets()) == [outer(i) for i in inner.offsets()]


def test_offsets_that_carry_are_refused():
    with pytest.raises(ValueError, match="offsets carry at 4"):
        Strided((4, 8), (10, 10)).compose(Strided((4, 6), (2, 2)))


def test_composition_keeps_the_inner_shape():
    outer = Strided((6, 2), (8, 2))
    both = outer.compose(Strided((4, 3), (3, 1)))
    assert str(both) == "((2,2),3):((24,2),8)"
    assert str(outer.compose(Strided(3, 0))) == "3:0"


def test_impossible_compositions_are_refused():
    with pytest.raises(ValueError, match="cannot be read with stride"):
        Strided((6, 2), (1, 100)).compose(Strided(3, 4))
    with pytest.raises(ValueError, match="cannot be read 9 times"):
        Strided((6, 8), (1, 100)).compose(Strided(9, 1))


@pytest.mark.parametrize(
    ("layout", "cosize"),
    [(Strided(4, 1), 24), (Strided((4, 2), (1, 8)), 32), (Strided((2, 2), (0, 3)), 12)],
)
def test_complement_fills_the_gaps(layout, cosize):
    rest = layout.complement(cosize)
    reached = {a + b for a in layout.offsets() for b in rest.offsets()}
    assert reached == set(range(cosize))


def test_overlapping_layouts_have_no_complement():
    with pytest.raises(ValueError, match="has no complement"):
        Strided((4, 4), (1, 3)).complement(64)


def test_tile_to_shape_covers_every_element_once():
    atom = Strided((4, 8), (8, 1))
    whole = tile_to_shape(atom, (8, 24, 2), (2, 1, 3))
    assert sorted(whole.offsets()) == list(range(8 * 24 * 2))
    assert whole(0, 8, 0) == 32  # the next tile along the second mode comes first
    assert whole(4, 0, 0) == 96
    assert whole(0, 0, 1) == 192


def test_tile_to_shape_rounds_up():
    whole = tile_to_shape(Strided((4, 4), (4, 1)), (5, 6), (2, 1))
    assert whole.size == 64
    with pytest.raises(ValueError, match="more modes than the shape"):
        tile_to_shape(Strided((4, 4), (4, 1)), (8,), (1,))


@pytest.mark.parametrize("swizzle", [Swizzle(3, 4, 3), Swizzle(2, 0, 3), Swizzle(1, 2, -2)])
def test_swizzles_are_permutations_and_their_own_inverse(swizzle):
    span = 1 << 10
    assert sorted(map(swizzle, range(span))) == list(range(span))
    assert all(swizzle(swizzle(i)) == i for i in range(span))


def test_swizzle_of_128_byte_rows():
    """Sw<3,4,3>: 16-byte chunk c of row r goes to chunk c ^ (r % 8)."""
    swizzle = Swizzle(3, 4, 3)
    assert str(swizzle) == "Sw<3,4,3>"
    for row in range(16):
        for chunk in range(8):
            assert swizzle(row * 128 + chunk * 16 + 5) == row * 128 + (chunk ^ row % 8) * 16 + 5
    with pytest.raises(ValueError, match="shift"):
        Swizzle(3, 0, 2)


def test_a_swizzle_composes_with_a_layout():
    """128 bytes a row, as TMA writes them: 16-byte words of row r are exchanged by r % 8."""
    rows = Strided((16, 128), (128, 1))
    swizzled = Swizzle(3, 4, 3).compose(rows)
    for r in range(16):
        for byte in range(128):
            assert swizzled(r, byte) == 128 * r + (byte // 16 ^ r % 8) * 16 + byte % 16
    assert sorted(swizzled.offsets()) == list(range(swizzled.size))
    words = swizzled.compose(Strided((8, 8), (1, 256)))  # the first 16-byte words of 8 rows
    assert [words(i, 0) for i in range(8)] == [swizzled(i, 0) for i in range(8)]
    assert str(swizzled) == "Sw<3,4,3> o (16,128):(128,1)"
