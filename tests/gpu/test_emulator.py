"""The emulator against a Hopper GPU: the same small kernels with random boxes and descriptors.

Every byte must agree. Skipped where there is no such GPU or no C++ compiler.
"""

import shutil

import pytest
import torch

from blockscale.runtime.cuda import current_stream, function
from blockscale.runtime.cuda.driver import context, load_driver
from native import micro

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.skipif(not IS_HOPPER, reason="no Hopper GPU"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]


def by_gpu(case):
    device = torch.device("cuda", torch.cuda.current_device())
    with context(device.index):
        driver = load_driver()
        stream = current_stream(device)
        return case.run(device, driver, lambda build: function(build, device), stream)


def differing(cases):
    """Of the cases, those whose bytes differ."""
    return [
        (case.facts, case.map, int((ours != theirs).sum()))
        for case in cases
        for ours, theirs in [(case.run(), by_gpu(case))]
        if not torch.equal(ours, theirs)
    ]


def test_random_boxes():
    assert not differing(micro.random_box(seed) for seed in range(200))


def test_random_matrix_descriptors():
    assert not differing(micro.random_product(seed) for seed in range(120))


def test_fragments():
    assert not differing(micro.random_fragments(seed) for seed in range(20))


def test_rings_and_clusters():
    cases = [micro.ring(seed, k_tiles=1 + seed) for seed in range(8)]
    assert not differing([*cases, *(micro.passing_on(seed) for seed in range(8))])
