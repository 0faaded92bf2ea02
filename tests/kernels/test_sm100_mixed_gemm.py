"""The mixed-input GEMM of sm_100: what is counted, refused and predicted."""

from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import sm100_mixed_gemm
from blockscale.kernels.matmul.sm100_mixed_gemm.config import Config
from blockscale.kernels.matmul.sm100_mixed_gemm.cost import counts
from blockscale.kernels.matmul.sm100_mixed_gemm.shared_memory import shared_bytes, shared_memory
from blockscale.layouts import DecodedMemory
from blockscale.layouts.tensor_memory import COLUMNS
from blockscale.ops import explain
from blockscale.ops.choose import by_rule
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu

FORMATS = (bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8, bs.KBIT2, bs.KBIT3, bs.KBIT4, bs.KBIT5)


def problem(format=bs.NVFP4, m=8192, n=8192, k=8192, device="b200", **facts):
    w = str(Kind(format, fragments(format)))
    facts = {"x": "bfloat16", "out": "bfloat16", "verb": "matmul", **facts}
    return Problem(m=m, n=n, k=k, w=w, device=gpu(device), **facts)


@pytest.mark.parametrize(
    ("tile_m", "expected"),
    [
        (64, DecodedMemory(64, 2, 0, 3, 64)),
        (192, DecodedMemory(192, 2, 0, 3, 64)),
        (224, DecodedMemory(224, 2, 32, 3, 64)),
        (256, DecodedMemory(256, 2, 96, 3, 64)),
    ],
)
def test_tmem_has_two_accumulators_and_three_sets_of_weights(tile_m, expected):
    """64 k of 128 rows of w as 16-bit numbers are 32 columns."""
    found = Config(tile_m, 2, 8).columns
    assert found == expected
    assert found.used <= COLUMNS
    assert found.set_columns == 32


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_every_config_fits(format):
    for each in sm100_mixed_gemm.configs(problem(format)):
        assert shared_bytes(each, problem(format)) + 2048 <= gpu("b200").shared_per_cta
        assert each.columns.used <= COLUMNS
        assert each.tile_m % (16 * each.ctas) == 0, "what an instruction takes"


def test_bytes_of_a_stage():
    """A CTA of a pair holds half the rows of x; of 16 rows of w, 64 k and eight scales."""
    memory = shared_memory(Config(256, 2, 8), bs.NVFP4, "bfloat16")
    assert (memory.x_bytes, memory.code_bytes, memory.scale_bytes) == (16384, 512, 128)
    assert memory.stage_bytes == 16384 + 8 * (512 + 128)
    assert shared_memory(Config(256, 1, 4), bs.NVFP4, "bfloat16").x_bytes == 32768


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"device": gpu("h200")}, "multiplies by tcgen05, which sm_90 has not"),
        ({"device": gpu("rtx5090")}, "multiplies by tcgen05"),
        ({"m": 32}, "33 rows of a matrix and more, not 32"),
        ({"x": "float32"}, "takes x in bfloat16 or float16"),
        ({"w": f"{bs.NVFP4.spec}@bits/rows"}, "w.prepare() once"),
        ({"w": str(Kind(bs.MXFP8, fragments(bs.MXFP8))), "x": "float16"}, "does not hold them"),
    ],
)
def test_refusals(changed, why):
    assert sm100_mixed_gemm.refuses(problem()) is None
    assert why in sm100_mixed_gemm.refuses(replace(problem(), **changed))


def test_pairs_are_bound_by_tensor_cores_and_single_ctas_by_shared_memory():
    """Per stage of 64 k: 256 rows of x take 512 cycles of the tensor cores. A single CTA writes and
    reads all of x, 512 cycles of shared memory, and codes; one of a pair half of x."""
    pair, single = (counts(problem(), Config(256, ctas, 4)) for ctas in (2, 1))
    assert pair.tensor == pytest.approx(512, rel=0.01)
    assert pair.shared == 2 * (16384 + 8 * (512 + 64)) / 128 < pair.tensor
    assert pair.decoding == 2 * 130 < pair.tensor
    assert single.shared == 2 * (32768 + 8 * (512 + 64)) / 128 > single.tensor
    assert (pair.slowest, counts(problem(), Config(64, 2, 8)).slowest) == (
        "tensor cores",
        "decoding",
    )


@pytest.mark.parametrize(
    "facts", [{}, {"gated": True, "activation": "silu"}], ids=["plain", "gated"]
)
def test_it_runs_many_rows_on_b200(facts):
    many = problem(m=1024, **facts)
    assert by_rule(many).kernel is sm100_mixed_gemm
    assert by_rule(replace(many, m=16)).kernel.NAME == "stream"
    told = str(explain(many))
    assert "sets of 32 for weights" in told
    assert "predicted, not measured" in told
    assert "unproven" in told
