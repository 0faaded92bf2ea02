"""What the emulator computes, and which mistakes of a kernel it reports."""

import shutil

import pytest
import torch

from native import micro
from native.host_function import SCHEDULES, EmulatedError, scheduled

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_ring_multiplies(schedule):
    case = micro.ring(3)
    with scheduled(schedule):
        got = case.run().view(torch.float32).view(2, 128, 4, 2, 2)
    k = 64 * case.facts["k_tiles"]
    x = case.mapped.view(torch.bfloat16).view(32, k).double()
    # Fragments of A: lane 4 g + t has rows g and g + 8, k 2 t, 2 t + 1 and those 8 further.
    given = case.given.view(torch.bfloat16).view(
        -1, 4, 8, 4, 4, 2, 2, 2
    )  # tile, warp, g, t, step, k/8, row/8, k%2
    w = given.permute(1, 6, 2, 0, 4, 5, 3, 7).reshape(64, k).double()
    sums = (w @ x.T).view(4, 2, 8, 4, 4, 2)  # warp, row / 8, g; column / 8, t, column % 2
    expected = sums.permute(0, 2, 4, 3, 1, 5).reshape(128, 4, 2, 2)
    assert torch.equal(got.double(), expected.expand(2, -1, -1, -1, -1))


CAUGHT = {
    "WRONG_PHASE": "race|deadlock",
    "TOO_FEW_BYTES": "nobody expects|deadlock|race",
    "TOO_MANY_BYTES": r"deadlock(.|\n)*1024 bytes to come",
    "MISSING_ARRIVAL": r"deadlock(.|\n)*1 of 2 arrivals",
    "NO_WAIT_FOR_EMPTY": "an arrival too many|race: cp.async.bulk.tensor writes shared memory",
    "EMPTY_TOO_SOON": "race: cp.async.bulk.tensor writes shared memory",
    "NO_WGMMA_WAIT": "race: cp.async.bulk.tensor writes shared memory .* wgmma of",
    "NO_WGMMA_FENCE": "wgmma without wgmma.fence",
    "NO_INIT_FENCE": "no fence shows to the async proxy",
    "EARLY_EXIT": "has ended|ends while|ends, and nothing orders",
    "UNALIGNED_COPY": "no multiple of 128",
    "ONE_WARP_SHORT": r"deadlock(.|\n)*bar.sync, where 96 of 128 threads",
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("mistake", CAUGHT)
def test_mistakes_of_a_ring_are_reported(mistake, schedule):
    with scheduled(schedule), pytest.raises(EmulatedError, match=CAUGHT[mistake]):
        micro.ring(1, mistake).run()


PASSED_ON = {
    "NO_PROXY_FENCE": "no fence.proxy.async",
    "NO_CTA_BARRIER": "race: .* shared memory",
    "NO_COPY_WAIT": "race: a load reads .* a cp.async",
    "BEYOND_THE_END": "is not in shared memory",
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("mistake", PASSED_ON)
def test_mistakes_of_threads_are_reported(mistake, schedule):
    with scheduled(schedule), pytest.raises(EmulatedError, match=PASSED_ON[mistake]):
        micro.passing_on(1, mistake).run()


def test_sums_that_nobody_waited_for_are_not_numbers():
    right = micro.ring(1, k_tiles=2).run()
    with scheduled(SCHEDULES[1]):
        got = micro.ring(1, "NO_WGMMA_WAIT", k_tiles=2).run()
    assert got.view(torch.float32).isnan().all()
    assert not right.view(torch.float32).isnan().any()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_threads_pass_numbers_on(schedule):
    case = micro.passing_on(2)
    with scheduled(schedule):
        case.run()
