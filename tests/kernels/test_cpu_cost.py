"""The choice of an algorithm for the native CPU products: what is predicted, held to what was
measured. Nothing is timed here."""

from statistics import median, quantiles

import pytest
import torch

import blockscale as bs
import ways
from bench import fit_arm, fit_cpu
from blockscale.formats import INT8
from blockscale.kernels.matmul import cpu
from blockscale.kernels.matmul.cpu_constants import CONSTANTS, FITTED_ON, Machine
from blockscale.kernels.matmul.cpu_cost import cost, count, row_tiles
from blockscale.kernels.matmul.cpu_counted import COUNTED
from blockscale.kernels.repack.cpu import CPU_TILES
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem
from blockscale.runtime import device_of

JUDGES = [
    fit_cpu.SWEEPS / f"{each}_cpu_draw2.jsonl"
    for each in ("xeon_avx512", "xeon_amx", "neoverse_n1")
]
SLICED = [
    bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP6_E3M2, bs.KBIT2, bs.KBIT3, bs.KBIT4, bs.KBIT5,
    bs.BNB_NF4, bs.BNB_FP4,
]  # fmt: skip
ARM_FLOATS = ("stream", "gemm", "bfmmla")
needs_native = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


def problem(fmt=bs.NVFP4, **facts):
    facts = {
        "verb": "matmul",
        "x": "bfloat16",
        "out": "bfloat16",
        "device": device_of(torch.device("cpu")),
        **facts,
    }
    return Problem(w=str(Kind(fmt, CPU_TILES)), **facts)


def test_rows_of_x_go_by_the_tiles_of_the_native_code():
    """csrc/products/row_tiles.h: as many as there are registers for, then 4, 2 or 1."""
    assert row_tiles(1, 8) == (1,)
    assert row_tiles(3, 8) == (4,)
    assert row_tiles(5, 8) == (8,)
    assert row_tiles(21, 8) == (8, 8, 8)
    assert row_tiles(18, 8) == (8, 8, 2)
    assert row_tiles(7, 4) == (4, 4)


def test_gemm_decodes_a_weight_once_and_stream_once_for_each_row_tile():
    asked = problem(m=64, n=1024, k=1024)
    for isa in CONSTANTS:
        stream, gemm = (cost(asked, each, isa, FITTED_ON[isa]) for each in ("stream", "gemm"))
        most = 8 if isa == "avx512" else 4
        constants = CONSTANTS[isa]
        scale = constants.scale / 16
        expected = 64 / most * (constants.decode[4] + scale)
        expected /= constants.decode[4] + constants.store + scale
        assert stream.bounds["decoding"] / gemm.bounds["decoding"] == pytest.approx(expected)
        assert stream.bounds["memory"] == gemm.bounds["memory"]


def test_experts_without_rows_cost_nothing():
    few = problem(m=4, n=512, k=512, groups=64, ragged=True)
    assert 3.8 < few.busy_matrices < 4
    assert count(few, "stream", "avx512").tiles == round(32 * few.busy_matrices)
    assert problem(m=4, n=512, k=512, groups=64).busy_matrices == 64


def test_a_thread_more_than_there_are_tiles_is_no_help():
    asked = problem(m=1, n=32, k=4096)
    two, four = (cost(asked, "stream", "avx512", Machine(t, 1e11, t * 1e11)) for t in (2, 4))
    assert two.bounds["decoding"] == pytest.approx(four.bounds["decoding"])


@pytest.mark.parametrize("isa", CONSTANTS)
def test_one_row_is_streamed_and_many_are_not(isa):
    def floats(**facts):
        return [
            each for each in cpu.algorithms(problem(bs.KBIT4, **facts), isa) if each != "slices"
        ]

    assert floats(m=500, n=4096, k=4096) == ["gemm", "stream"]
    assert floats(m=1, n=4096, k=4096) == ["stream", "gemm"]
    if isa != "scalar":  # where both measured about alike from two rows to four
        # two rows to an expert
        assert floats(m=512, n=512, k=512, groups=256, ragged=True)[0] == "stream"


def test_amx_takes_over_by_its_rule():
    assert cpu.algorithms(problem(m=4, n=4096, k=4096), "amx")[:2] == ["stream", "amx"]
    assert cpu.algorithms(problem(m=5, n=4096, k=4096), "amx")[0] == "amx"
    assert "amx" not in cpu.algorithms(problem(m=5, n=512, k=512, x="float32"), "amx")
    assert "amx" not in cpu.algorithms(problem(m=5, n=512, k=512), "avx512")


@pytest.mark.parametrize("sliced", SLICED, ids=lambda each: each.name)
def test_one_row_is_multiplied_in_slices_where_bytes_are(sliced):
    asked = problem(sliced, m=1, n=4096, k=4096)
    assert cpu.algorithms(asked, "dotprod")[0] == "slices"
    assert cpu.algorithms(problem(sliced, m=500, n=4096, k=4096), "dotprod")[0] == "gemm"
    for isa in ("neon", "avx512"):
        assert "slices" not in cpu.algorithms(asked, isa)


def test_what_cannot_be_cut_into_slices_is_not():
    assert "slices" not in cpu.algorithms(problem(bs.MXFP8, m=1, n=4096, k=4096), "dotprod")
    assert "slices" not in cpu.algorithms(problem(bs.KBIT4, m=1, n=4096, k=32), "dotprod")


def test_slices_of_a_weight_are_multiplied_one_by_one():
    """Two of KBIT4 at this k, one of MXFP4."""
    two, one = (
        cost(problem(fmt, m=4, n=512, k=4096), "slices", "dotprod", FITTED_ON["dotprod"])
        for fmt in (bs.KBIT4, bs.MXFP4)
    )
    assert two.bounds["multiply-adds"] == pytest.approx(2 * one.bounds["multiply-adds"])
    assert two.bounds["decoding"] == pytest.approx(one.bounds["decoding"])


@pytest.mark.parametrize("m", [1, 2, 64])
def test_bfmmla_takes_every_row_of_bfloat16(m):
    """So that a row's bits do not depend on how many others there are."""
    for fmt in (bs.NVFP4, bs.KBIT3, bs.MXFP8):
        asked = problem(fmt, m=m, n=512, k=512)
        assert cpu.algorithms(asked, "bf16")[0] == "bfmmla"
        machine = FITTED_ON["dotprod"]
        times = {each: cost(asked, each, "bf16", machine).seconds for each in ARM_FLOATS}
        assert times["bfmmla"] == min(times.values())
        assert "bfmmla" not in cpu.algorithms(asked, "i8mm")
    assert "bfmmla" not in cpu.algorithms(problem(m=m, n=512, k=512, x="float32"), "bf16")


def test_int8_on_arm_goes_by_tiles_of_eight_rows():
    """csrc/products/row_tiles.h, ARM_INT8_ROWS and BFMMLA_ROWS; kernels.h, SLICE_ROWS."""
    asked = problem(m=16, n=512, k=512)
    for algorithm, most in (("int8", 8), ("bfmmla", 8), ("stream", 4), ("gemm", 4), ("slices", 4)):
        assert count(asked, algorithm, "bf16").row_tiles == (most,) * (16 // most)


@pytest.mark.parametrize("isa", COUNTED)
def test_the_constants_of_untimed_cpus_are_those_of_the_counted_instructions(isa):
    """tests/native/arm_sweep.json; `python -m bench.fit_arm --write` makes them anew."""
    ratios = fit_arm.errors(isa, COUNTED[isa])
    assert len(ratios) >= 150
    assert median(ratios) <= 1.1
    assert max(ratios) <= 1.5


@pytest.mark.parametrize("isa", COUNTED)
def test_a_prediction_for_untimed_cpus_says_so(isa):
    found = cpu.bind(problem(m=4, n=512, k=512), cpu.Config(isa, "stream", packs=False)).predicted
    assert str(found).endswith(f" (by counted instructions: nothing was timed on {isa})")


def test_times_take_the_place_of_counts(monkeypatch):
    """Once a sweep of an ARM machine has been fitted."""
    assert fit_cpu.constants_of("i8mm") == COUNTED["i8mm"]
    monkeypatch.setitem(CONSTANTS, "i8mm", CONSTANTS["avx2"])
    assert fit_cpu.constants_of("i8mm") == CONSTANTS["avx2"]
    found = cpu.bind(problem(m=4, n=512, k=512), cpu.Config("i8mm", "stream", packs=False))
    assert found.predicted.basis == ""


@pytest.mark.parametrize("isa", CONSTANTS)
def test_other_predictions_rest_on_times(isa):
    found = cpu.bind(problem(m=4, n=512, k=512), cpu.Config(isa, "stream", packs=False))
    assert found.predicted.basis == ""


def test_int8_runs_where_it_was_asked_for():
    x = str(Kind(INT8, canonical(INT8)))
    for m in (1, 64, 500):
        assert cpu.algorithms(problem(m=m, n=512, k=512, x=x), "avx512")[0] == "int8"
    assert "int8" not in cpu.algorithms(problem(bs.MXFP8, m=1, n=512, k=512, x=x), "avx512")


@needs_native
def test_the_choice_does_not_depend_on_the_number_of_threads():
    """Algorithms sum in different orders: bits would depend on it too."""
    asked = [problem(m=m, n=n, k=1024) for m in range(1, 65) for n in (32, 1024)]
    threads = torch.get_num_threads()
    try:
        chosen = []
        for used in (1, 7):
            torch.set_num_threads(used)
            chosen.append([cpu.configs(each)[0].algorithm for each in asked])
    finally:
        torch.set_num_threads(threads)
    assert chosen[0] == chosen[1]


@needs_native
def test_explain_tells_the_time_its_bound_and_the_next_algorithm(monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_ISA", ways.ISAS[0])
    ways.forget()
    w = bs.quantize(torch.randn(64, 64), bs.NVFP4).prepare()
    told = str(bs.explain(torch.randn(300, 64), w))
    ways.forget()
    expected, second = (
        line for line in told.splitlines() if line.split()[0] in ("expects", "next")
    )
    assert "s, bound by " in expected
    assert ", with stream on " in second


@pytest.mark.parametrize("isa", [*CONSTANTS, "amx"])
def test_the_choice_is_near_the_best_on_a_draw_that_did_not_fit_it(isa):
    """By what docs/design/0007-choosing.md records of it; the constants are those in the source."""
    timed = [each for each in fit_cpu.read(JUDGES) if each.isa == isa]
    ratios = fit_cpu.judged(timed, CONSTANTS, FITTED_ON)[isa]
    assert len(ratios) >= 30
    assert median(ratios) <= 1.01
    assert quantiles(ratios, n=10)[-1] <= 1.05


@pytest.mark.parametrize("isa", ["neon", "dotprod"])
@pytest.mark.parametrize("few", [True, False])
def test_int8_products_take_what_is_predicted_on_a_draw_that_did_not_fit_it(isa, few):
    sweep = fit_cpu.read([fit_cpu.SWEEPS / "neoverse_n1_cpu_int8_draw2.jsonl"])
    ratios = [
        each.seconds["int8"] / cost(each.problem, "int8", isa, each.machine).seconds
        for each in sweep
        if each.isa == isa and (each.problem.m < 16) == few
    ]
    assert len(ratios) >= 20
    assert 0.95 <= median(ratios) <= 1.05
