"""Python foretells how many slices the native library cuts the values of a weight into."""

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import blockscale as bs
from blockscale.formats import CATALOGUE, Codebook
from blockscale.kernels.matmul.cpu_slices import weight_slices
from native.arm import CSRC, run

SOURCE = Path(__file__).with_name("slice_tables.cpp")
DEPTHS = (32, 64, 128, 192, 256, 512, 1024, 1536, 2048, 3072, 4096, 8192, 14336, 65536)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    made = tmp_path_factory.mktemp("slices") / "slice_tables"
    run("c++", "-std=c++17", "-O1", "-I", CSRC, SOURCE, "-o", made)
    return made


def random_codebook(order):
    """Some with numbers too far apart for any slices, some of a few whole steps."""
    bits = order.randint(2, 6)
    least = order.choice((1.0, 2.0**-6, 2.0**-12, 2.0**-30))
    values = [order.choice((-1, 1)) * least ** order.random() for _ in range(1 << bits)]
    if order.random() < 0.2:
        values = [round(60 * value) / 64 for value in values]
    return replace(bs.KBIT4, name="", element=Codebook(bits=bits, values=tuple(sorted(values))))


def test_the_number_of_slices_is_the_one_foretold(program):
    order = random.Random(1)
    formats = [each for each in CATALOGUE.values() if each.element.bits <= 6 and each.block >= 32]
    formats += [random_codebook(order) for _ in range(60)]
    asked = [(each, k) for each in formats for k in DEPTHS]
    lines = (
        " ".join(map(str, (each.element.bits, k, *map(float.hex, each.element.values))))
        for each, k in asked
    )
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True)
    found = list(map(int, done.stdout.split()))
    assert found == [weight_slices(each, k) for each, k in asked]
    assert set(found) == {0, 1, 2, 3}


def test_more_columns_never_take_more_slices():
    for each in CATALOGUE.values():
        told = [weight_slices(each, k) for k in DEPTHS]
        sliced = [slices for slices in told if slices]
        assert sliced == sorted(sliced, reverse=True)
        assert 0 not in told[told.index(sliced[0]) :] if sliced else not any(told)


def test_formats_of_few_bits_are_exact():
    assert {weight_slices(each, 32) for each in (bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3)} == {1}
    assert weight_slices(bs.MXFP6_E3M2, 32) == 2
    assert weight_slices(bs.MXFP8, 4096) == 0


def test_blocks_of_16_are_cut_where_they_are_one_slice_of_four_bits():
    assert weight_slices(replace(bs.KBIT4, name="", block=16), 4096) == 0
    assert weight_slices(replace(bs.KBIT2, name="", block=16), 4096) == 0
