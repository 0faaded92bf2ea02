"""What the device predicts by the sizes of ragged groups is what Python predicts."""

import random
import shutil
from ctypes import POINTER, c_bool, c_int
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
def pays():
    found = host_library("-std=c++17", "-O1", "-w", SOURCE).pays
    found.argtypes, found.restype = (POINTER(Told), c_int, c_int), c_bool
    return found


def test_tiles_are_split_where_python_predicts_less_time():
    order = random.Random(0)
    answers = []
    for _ in range(500):
        split, sums = (order.uniform(1e3, 1e4) for _ in range(2))
        cycles = TileCycles(order.uniform(1e4, 1e5), split, sums)
        tiles, clusters = order.randint(1, 900), order.choice((2, 44, 132))
        whole, parted = cycles.whole(tiles, clusters), cycles.in_parts(tiles, clusters)
        if tiles % clusters and abs(whole - parted) > ROUNDED * whole:
            answers.append(pays()(Told(**cycles._asdict()), tiles, clusters))
            assert answers[-1] == (parted < whole)
    assert 50 < sum(answers) < len(answers) - 50
