"""The clusters of a tiled GEMM together multiply every part of every tile once."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from native.host_library import program as host_program

SOURCE = Path(__file__).with_name("tile_order.cpp")


@pytest.fixture(scope="module")
def program():
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    return host_program("-std=c++20", "-O1", "-w", SOURCE)


def run(program, *facts):
    done = subprocess.run([program, *map(str, facts)], capture_output=True, text=True)
    assert done.stdout.strip() == "right", (facts, done.stderr)


@pytest.mark.parametrize("split", [0, 1])
def test_random_problems(program, split):
    order = random.Random(split)
    for _ in range(60):
        m, n, k = order.randint(1, 2000), order.randint(1, 6000), order.randint(1, 40) * 32
        groups, clusters, band = order.choice((1, 1, 3)), order.randint(1, 66), order.randint(1, 9)
        run(program, m, n, k, groups, 0, clusters, split, band)


@pytest.mark.parametrize("split", [0, 1])
def test_random_groups(program, split):
    order = random.Random(split)
    for _ in range(60):
        rows = [order.choice((0, 0, 1, order.randint(2, 400))) for _ in range(order.randint(1, 40))]
        n, k, clusters = order.randint(1, 3000), order.randint(1, 40) * 32, order.randint(1, 66)
        band = order.randint(1, 9)
        run(program, sum(rows) + 5, n, k, len(rows), 1, clusters, split, band, *rows)


def test_fewer_turns_than_clusters(program):
    """Some clusters have no part: nobody waits for theirs."""
    run(program, 64, 128, 320, 1, 0, 66, 1, 1)
