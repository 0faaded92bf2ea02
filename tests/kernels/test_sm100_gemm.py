"""The tcgen05 GEMM as far as it can be counted without its GPU: columns, bytes, refusals, cost."""

from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.kernels.matmul import sm100_gemm
from blockscale.kernels.matmul.block_scaled.operands import operands, operands_of
from blockscale.kernels.matmul.sm100_gemm.columns import plan
from blockscale.kernels.matmul.sm100_gemm.config import Config
from blockscale.kernels.matmul.sm100_gemm.cost import counts
from blockscale.kernels.matmul.sm100_gemm.shared_memory import shared_memory
from blockscale.layouts import ScaledMemory
from blockscale.layouts.tensor_memory import COLUMNS
from blockscale.problem import Problem
from blockscale.runtime import gpu

MX = (bs.MXFP8, bs.MXFP8_E5M2, bs.MXFP6_E2M3, bs.MXFP6_E3M2, bs.MXFP4)
PAIRS = [(bs.NVFP4, bs.NVFP4), *((x, w) for x in MX for w in MX)]
PAIR = Config(mma_n=256, ctas=2, panels=1, stages=6)


def problem(x=bs.MXFP8, w=None, *, m=8192, n=8192, k=8192, device="b200", **facts):
    return Problem(
        verb="matmul",
        m=m,
        n=n,
        k=k,
        x=x if isinstance(x, str) else f"{x.spec}@bits/blocked",
        w=w if isinstance(w, str) else f"{(w or x).spec}@bits/blocked",
        out="bfloat16",
        device=gpu(device),
        **facts,
    )


@pytest.mark.parametrize(
    ("mma_n", "scale_groups", "columns"),
    [(256, 1, 524), (256, 2, 536), (256, 4, 560), (128, 1, 264)],
)
def test_what_two_accumulators_and_scales_would_need(mma_n, scale_groups, columns):
    assert plan(mma_n, scale_groups, 6).unshared == columns


@pytest.mark.parametrize(
    ("mma_n", "scale_groups", "expected"),
    [
        (256, 1, (2, 64, 3, 12)),  # 36 columns of scales: 548 in all, 36 too many
        (256, 2, (2, 96, 3, 24)),
        (256, 4, (2, 96, 2, 48)),
        (256, 8, (1, 0, 2, 96)),  # two sets take 192 columns, which accumulators cannot give
        (128, 4, (2, 0, 3, 32)),  # nothing need be shared
        (384, 4, (1, 0, 2, 64)),  # all 512
    ],
)
def test_accumulators_share_as_few_columns_as_leave_room_for_scales(mma_n, scale_groups, expected):
    accumulators, shared, sets, set_columns = expected
    found = plan(mma_n, scale_groups, 6)
    assert found == ScaledMemory(mma_n, accumulators, shared, sets, scale_groups)
    assert found.set_columns == set_columns


@pytest.mark.parametrize(("x", "w"), PAIRS)
def test_every_config_fits(x, w):
    every = problem(x, w)
    found = sm100_gemm.configs(every)
    assert {(config.mma_n, config.ctas) for config in found} == {
        (128, 1),
        (128, 2),
        (256, 1),
        (256, 2),
        (384, 2),
    }
    for config in found:
        columns = config.columns(operands(every))
        assert columns.used <= COLUMNS
        assert 2 <= columns.sets <= config.stages
        memory = shared_memory(config, operands(every))
        assert 1024 + config.stages * memory.stage_bytes <= every.device.shared_per_cta


@pytest.mark.parametrize(
    ("x", "w", "scales", "counted"),
    [
        (bs.MXFP8, bs.MXFP8, 3 * 512, 2 * 16384 + 1536),
        (bs.NVFP4, bs.NVFP4, 12 * 512, 2 * 16384 + 6144),
        (bs.MXFP4, bs.MXFP4, 6 * 512, 2 * 16384 + 3072),
        # Elements that TMA spreads to bytes are counted as they are in memory.
        (bs.MXFP8, bs.MXFP4, 3 * 512, 16384 + 8192 + 1536),
        (bs.MXFP6_E2M3, bs.MXFP6_E2M3, 3 * 512, 2 * 12288 + 1536),
    ],
)
def test_bytes_of_a_stage(x, w, scales, counted):
    memory = shared_memory(PAIR, operands_of(x, w))
    assert (memory.x_bytes, memory.w_bytes) == (16384, 16384)  # 128 rows of x, half of 256 of w
    assert memory.scale_bytes == scales
    assert memory.stage_bytes == -(-(32768 + scales) // 1024) * 1024
    assert memory.stage_tx == counted


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"device": gpu("h200")}, "tcgen05, which sm_90 has not"),
        ({"device": gpu("rtx5090")}, "tcgen05, which sm_120 has not"),
        ({"x": "bfloat16"}, "multiplies quantised x, and x is bfloat16: give x_format"),
        ({"x": "e4m3/32:e8m0@fragments/fragments"}, "bits/blocked, and x is in fragments"),
        (
            {"w": "e4m3/32:e8m0@bits/rows"},
            "reads bits/blocked, and w is in bits/rows: w.prepare(x_format=...) once",
        ),
        ({"w": f"{bs.NVFP4.spec}@bits/blocked"}, "scales of one kind"),
        ({"w": f"{bs.KBIT4.spec}@planes/blocked"}, "reads bits/blocked, and w is in planes"),
        ({"w": f"{bs.MXFP4.spec}@bits/blocked", "k": 8224}, "multiples of 128, not 8224"),
        ({"m": 2**31}, "counts rows in 32 bits, and there are 2147483648"),
    ],
)
def test_what_it_cannot_multiply_is_refused_with_the_reason(changed, why):
    assert sm100_gemm.refuses(problem()) is None
    assert why in sm100_gemm.refuses(replace(problem(), **changed))


@pytest.mark.parametrize(
    ("x", "multiple"), [(bs.MXFP8, 32), (bs.NVFP4, 64), (bs.MXFP4, 64), (bs.MXFP6_E2M3, 128)]
)
def test_k_is_whole_instructions(x, multiple):
    assert sm100_gemm.refuses(problem(x, k=9 * multiple)) is None
    if x.block < multiple:
        assert f"multiples of {multiple}" in sm100_gemm.refuses(problem(x, k=multiple + x.block))


def test_scales_of_x_may_be_in_rows():
    """As those of x that is quantised on the fly are."""
    assert sm100_gemm.refuses(problem(x="e4m3/32:e8m0@bits/rows", w=bs.MXFP8)) is None


def test_a_large_product_is_predicted_near_the_peak_and_says_that_it_is_predicted():
    large = problem()
    best = sm100_gemm.configs(large)[0]
    assert (best.mma_n, best.ctas) == (256, 2)
    told = str(sm100_gemm.bind(large, best).predicted)
    assert told.endswith("of the tensor cores' peak, predicted, not measured")
    share = int(told.split("%")[0].split()[-1])
    assert share >= 90


def test_more_rows_of_w_make_up_for_what_scales_cost_shared_memory():
    """Scales of NVFP4 are written to shared memory and read like codes: with 256 rows of w they
    come on top of what keeps shared memory as busy as the tensor cores, with 384 they do not."""
    large = problem(bs.NVFP4, m=16384, n=16384, k=16384)
    square, wide = (counts(large, replace(PAIR, mma_n=n, stages=4)) for n in (256, 384))
    assert (square.tensor, square.shared) == (512, 608)
    assert (wide.tensor, wide.shared) == (768, 768)
    best, *_ = sm100_gemm.configs(large)
    assert best.mma_n == 384
    assert "95% of the tensor cores' peak" in str(sm100_gemm.bind(large, best).predicted)
    assert sm100_gemm.configs(replace(large, gated=True, activation="silu"))[0].mma_n == 256


def test_pairs_halve_what_shared_memory_moves_for_w():
    one, two = (counts(problem(), replace(PAIR, ctas=ctas)) for ctas in (1, 2))
    assert one.tensor == two.tensor == 512
    assert one.shared - two.shared == 2 * 16384 / 128


def test_tiles_of_ragged_groups_may_begin_inside_a_tile():
    ragged = problem(m=1000, groups=8, ragged=True)
    assert PAIR.m_tiles(ragged) == 4 + 7
    assert PAIR.m_tiles(problem(m=1000, groups=8)) == 8 * 4
