"""CuTe's names give CuTe's layouts, whichever way a major mode is spelled."""

from enum import Enum, IntEnum

import pytest

import blockscale as bs
from blockscale.compat import BlockScaledBasicChunk, OperandMajorMode, tile_atom_to_shape_SF

ATOMS = {
    "K": "((32,4),(16,4)):((16,4),(0,1))",
    "MN": "((16,4),(32,4)):((0,1),(16,4))",
}
KNOWN = {
    (128, 64, 1): "(((32,4),1),((16,4),1),(1,1)):(((16,4),512),((0,1),512),(0,512))",
    (128, 128, 1): "(((32,4),1),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,1024))",
    (256, 64, 1): "(((32,4),2),((16,4),1),(1,1)):(((16,4),512),((0,1),512),(0,1024))",
    (256, 128, 1): "(((32,4),2),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,2048))",
}


class CompilersMode(Enum):
    """CuTe's members stand for values of its compiler, and refuse to be compared with others."""

    MN = ("a value of", "its compiler")
    K = ("another", "one")

    def __eq__(self, other):
        if not isinstance(other, CompilersMode):
            raise RuntimeError(f"{self} cannot be compared with {other}")
        return self is other

    __hash__ = Enum.__hash__


class NumberedMode(IntEnum):
    K = 0
    MN = 1


class ValuedMode(Enum):
    contiguous_along_k = "K"
    contiguous_along_rows = "mn"


K, MN = OperandMajorMode.K, OperandMajorMode.MN
SPELLINGS = {
    K: ["K", "k", K, CompilersMode.K, NumberedMode.K, ValuedMode.contiguous_along_k],
    MN: ["MN", "Mn", MN, CompilersMode.MN, NumberedMode.MN, ValuedMode.contiguous_along_rows],
}
CASES = [(given, mode) for mode, every in SPELLINGS.items() for given in every]


@pytest.mark.parametrize(("given", "mode"), CASES, ids=repr)
def test_every_spelling_of_a_major_mode(given, mode):
    for chunk in (
        BlockScaledBasicChunk(16, given),
        BlockScaledBasicChunk(sf_vec_size=16, major_mode=given),
    ):
        assert str(chunk.layout) == ATOMS[mode.name]
        assert chunk.major_mode is mode
        assert chunk == BlockScaledBasicChunk(16, mode)
        assert hash(chunk) == hash(BlockScaledBasicChunk(16, mode))


def test_k_major_is_the_default():
    assert str(BlockScaledBasicChunk(16).layout) == ATOMS["K"]
    assert str(BlockScaledBasicChunk(32).layout) == "((32,4),(32,4)):((16,4),(0,1))"


@pytest.mark.parametrize("given", ["", "row", "N", None, 0, True, [], Enum("Other", "M N").M])
def test_anything_else_is_no_major_mode(given):
    with pytest.raises(ValueError, match="major_mode must be K or MN"):
        BlockScaledBasicChunk(16, given)


@pytest.mark.parametrize("given", [0, -16, 16.0, "16", True, None])
def test_the_vector_size_is_checked(given):
    for call in (BlockScaledBasicChunk, lambda v: tile_atom_to_shape_SF((128, 64, 1), v)):
        with pytest.raises(ValueError, match="sf_vec_size must be a positive int"):
            call(given)


@pytest.mark.parametrize("shape", KNOWN)
def test_known_answers(shape):
    assert str(tile_atom_to_shape_SF(shape, 16)) == KNOWN[shape]
    assert (
        str(tile_atom_to_shape_SF(Shape=shape, sf_vec_size=16, loc=None, ip=None)) == (KNOWN[shape])
    )


def test_the_places_of_a_compiler_are_taken():
    place = object()
    layout = tile_atom_to_shape_SF((128, 64, 1), 16, loc=place, ip=place)
    assert str(layout) == KNOWN[128, 64, 1]


def test_partial_tiles_and_batches():
    layout = tile_atom_to_shape_SF((200, 96, 3), 32)
    assert layout == bs.layouts.scale_layout((200, 96, 3), bs.MXFP8)
    assert str(layout) == "(((32,4),2),((32,4),1),(1,3)):(((16,4),512),((0,1),512),(0,1024))"


def test_a_nested_mode_counts_as_its_product():
    assert str(tile_atom_to_shape_SF(((128, 2), (16, 8), 1), 16)) == KNOWN[256, 128, 1]


@pytest.mark.parametrize("shape", [(128, 64), (128,), (128, 64, 1, 1)])
def test_a_shape_has_three_modes(shape):
    with pytest.raises(ValueError, match=r"Shape must be \(MN, K, L\)"):
        tile_atom_to_shape_SF(shape, 16)
