"""What the device predicts by the sizes of ragged groups is what Python predicts."""

import random
import shutil
from ctypes import POINTER, c_bool, c_float, c_int
from functools import cache
from pathlib import Path

import pytest

from blockscale.kernels.matmul.fragments.arguments import TileCycles as Told
from blockscale.kernels.matmul.sm90_gemm.cost import TileCycles
from native.host_library import host_library

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
SOURCE = Path(__file__).with_name("tile_cycles.cpp")
ROUNDED = 1e-6  # float32, some operations


@cache
def function(name, result):
    found = getattr(host_library("-std=c++17", "-O1", "-w", SOURCE), name)
    found.argtypes, found.restype = (POINTER(Told), c_int, c_int), result
    return found


def test_predictions_are_those_of_python():
    order = random.Random(0)
    answers = []
    for _ in range(500):
        tile, *others = (order.uniform(1e4, 1e5), *(order.uniform(1e3, 1e4) for _ in range(3)))
        cycles = TileCycles(tile, order.uniform(1, 1.1) * tile, *others)
        tiles, clusters = order.randint(1, 900), order.choice((1, 44, 132))
        whole, parted = cycles.whole(tiles, clusters), cycles.in_parts(tiles, clusters)
        told = Told(**cycles._asdict()), tiles, clusters
        assert function("whole", c_float)(*told) == pytest.approx(whole, rel=ROUNDED)
        assert function("split", c_float)(*told) == pytest.approx(parted, rel=ROUNDED)
        if abs(whole - parted) > ROUNDED * whole:
            answers.append(function("pays", c_bool)(*told))
            assert answers[-1] == (parted < whole)
    assert 50 < sum(answers) < 450


def test_groups_without_rows_have_nothing_to_split():
    assert not function("pays", c_bool)(Told(9, 9, 0, 0, 0), 0, 132)
