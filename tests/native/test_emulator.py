"""What the emulator computes, and which mistakes of a kernel it reports."""

import shutil
from itertools import product

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


def swizzled(address, width):
    """Pieces of 16 bytes change places by the number of the row of 128 bytes."""
    return address ^ (address >> 7 & (width // 16 - 1)) << 4 if width else address


def box_by_definition(case):
    """Byte by byte: what lies outside of the tensor is zero."""
    given, item = case.map, micro.ITEMS[case.map.kind]
    width, out = (0, 32, 64, 128)[given.swizzle], case.given[: case.out_bytes].clone()
    source = case.mapped.numpy()
    strides = (item, *given.strides)
    for at, place in enumerate(product(*(range(side) for side in reversed(given.box)))):
        where = [
            first + inside
            for first, inside in zip(case.facts["coordinates"], reversed(place), strict=False)
        ]
        there = all(0 <= x < size for x, size in zip(where, given.sizes, strict=True))
        begin = sum(x * stride for x, stride in zip(where, strides, strict=True))
        for byte in range(item):
            value = int(source[begin + byte]) if there else 0
            out[swizzled(at * item + byte, width)] = value
    return out


def test_random_boxes():
    for seed in range(40):
        case = micro.random_box(seed)
        with scheduled(SCHEDULES[seed % 2]):
            assert torch.equal(case.run(), box_by_definition(case)), (seed, case.map, case.facts)


def test_a_box_begins_at_a_multiple_of_16_bytes():
    case = micro.random_box(0)
    case.facts["coordinates"] = (3, 0, 0)
    with pytest.raises(EmulatedError, match="no multiple of 16 bytes"):
        case.run()


def product_by_definition(case):
    """The B operand by its descriptor, A by the fragments of lanes, in float64."""
    descriptor, size = case.facts["descriptor"], case.facts["bytes"]
    dtype = torch.bfloat16 if case.facts["is_bfloat16"] else torch.float16
    start, leading, stride = (16 * (descriptor >> at & 0x3FFF) for at in (0, 16, 32))
    width = (0, 128, 64, 32)[descriptor >> 62]
    at = torch.empty(64, 16, dtype=torch.long)
    for n, k in product(range(64), range(16)):
        core = start + n // 8 * stride + n % 8 * (width or 16)
        at[n, k] = core + (2 * k if width else k // 8 * leading + 2 * k % 16)
    if width:
        at = at ^ (at >> 7 & (width // 16 - 1)) << 4
    b = case.given[:size].view(dtype).double()[at // 2]
    a = case.given[size:].view(dtype).view(4, 8, 4, 2, 2, 2)  # warp, g, t, k / 8, row / 8, k % 2
    a = a.permute(0, 4, 1, 3, 2, 5).reshape(64, 16).double()
    sums = (a @ b.T).view(4, 2, 8, 8, 4, 2).permute(0, 2, 4, 3, 1, 5).reshape(128, 32)
    return sums + torch.arange(128)[:, None] - torch.arange(32)


def test_random_matrix_descriptors():
    for seed in range(24):
        case = micro.random_product(seed)
        got = case.run().view(torch.float32).view(128, 32)
        assert torch.equal(got.double(), product_by_definition(case)), (seed, case.facts)


def test_fragments():
    """ldmatrix and stmatrix through permuted rows, and mma.sync between them."""
    case = micro.random_fragments(5)
    rows = case.given.view(torch.bfloat16).view(2, 32, 8).double()
    lanes = torch.arange(32)
    w, x = (rows[i][lanes ^ flip].view(4, 8, 8) for i, flip in ((0, 5), (1, 9)))
    a = torch.cat([torch.cat([w[0], w[2]], 1), torch.cat([w[1], w[3]], 1)])  # 16 x 16
    c = a @ torch.cat([x[0], x[1]], 1).T
    d = c + a @ torch.cat([x[2], x[3]], 1).T
    stored = torch.cat([c[:8].T, c[8:].T, d[:8].T, d[8:].T])  # transposed, 8 x 8 at a time
    expected = rows.clone()
    expected[0][lanes ^ 3] = stored
    got = case.run().view(torch.bfloat16).view(2, 32, 8)
    assert torch.equal(got, expected.bfloat16())


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
    "NO_FLAG": "race: a load reads global memory",
    "NO_GLOBAL_FENCE": "race: cp.async.bulk reads global memory .* no fence.proxy.async",
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
        got = case.run()
    sums, again = got[4096:].chunk(2)
    assert torch.equal(sums, again)
