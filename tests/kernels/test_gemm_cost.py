"""The choice of a config for the Hopper GEMM: what is legal, and what is predicted to be fast, held
to what was measured. No GPU is needed."""

from dataclasses import replace
from statistics import median

import pytest
import torch

import blockscale as bs
from bench import fit_gemm, kernel_choice
from bench.fit_stream import SWEEPS
from blockscale import ops
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import sm90_gemm
from blockscale.kernels.matmul.fragments.groups import routings
from blockscale.kernels.matmul.sm90_gemm.choice import predicted
from blockscale.kernels.matmul.sm90_gemm.correction import correction
from blockscale.kernels.matmul.sm90_gemm.cost import cost
from blockscale.kernels.matmul.sm90_gemm.shared_memory import shared_bytes
from blockscale.kernels.matmul.sm90_gemm.space import every_config
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu


def problem(fmt=bs.NVFP4, **facts):
    facts = {"verb": "matmul", "x": "bfloat16", "out": "bfloat16", "device": gpu("sm_90"), **facts}
    return Problem(w=str(Kind(fmt, fragments(fmt))), **facts)


@pytest.fixture(scope="module")
def judged():
    """Draws that neither a constant nor the correction was fitted to."""
    names = ("gemm_draw4", "gemm_draw5", "gemm_draw7", "large_draw2")
    return fit_gemm.read(SWEEPS / f"h200_{name}.jsonl" for name in names)


def runs(timed):
    return ops.choose(timed.problem).kernel is sm90_gemm


def test_choices_on_problems_that_nothing_was_fitted_to(judged):
    """Some of them with clusters that share the k of a tile among the best. Of ragged groups, whose
    sizes are not known to whoever chooses, those that this kernel runs."""
    assert sum(any(config.k_parts > 1 for config in each.times) for each in judged) >= 20
    regrets = sorted(fit_gemm.regret(each) for each in judged if not each.problem.ragged)
    assert len(regrets) >= 190
    assert median(regrets) <= 1.005
    assert sum(regrets) / len(regrets) <= 1.006
    assert sum(each > 1.1 for each in regrets) <= 2
    assert regrets[-1] <= 1.16
    ragged = [fit_gemm.regret(each) for each in judged if each.problem.ragged and runs(each)]
    assert len(ragged) >= 15
    assert max(ragged) <= 1.21


def test_choices_on_the_last_draw():
    """Timed after all was fitted, with halved turns among the configs."""
    judged = fit_gemm.read([SWEEPS / "h200_gemm_draw8.jsonl"])
    regrets = [fit_gemm.regret(each) for each in judged]
    assert len(judged) >= 70
    assert sum(fit_gemm.choice(each).halved for each in judged) >= 5
    assert sum(regrets) / len(regrets) <= 1.005
    assert max(regrets) <= 1.03


def test_choices_where_tiles_are_about_as_many_as_sms():
    """Most of them gated, with parts of tiles that are short. Nothing was fitted to the draw."""
    judged = fit_gemm.read([SWEEPS / "h200_few_tiles_draw2.jsonl"])
    regrets = [fit_gemm.regret(each) for each in judged]
    assert len(judged) >= 20
    assert sum(each.problem.gated for each in judged) >= 10
    assert sum(regrets) / len(regrets) <= 1.005
    assert max(regrets) <= 1.04


def test_choices_where_a_table_may_stand_in_shared_memory():
    """Sizes of ragged groups are not known to whoever chooses."""
    judged = fit_gemm.read([SWEEPS / "h200_codebook_draw2.jsonl"])
    of_four_bits = [each for each in judged if each.problem.w_kind.format.element.bits == 4]
    assert len(judged) >= 40
    assert any(min(each.times, key=each.times.__getitem__).shared_table for each in of_four_bits)
    regrets = [fit_gemm.regret(each) for each in judged]
    assert median(regrets) <= 1.03
    for each, regret in zip(judged, regrets, strict=True):
        assert regret <= (1.2 if each.problem.ragged else 1.1)


@pytest.mark.parametrize(("groups", "mean"), [(8, 128), (64, 20), (32, 3)])
def test_tiles_are_as_many_as_random_rows_need(groups, mean):
    """Where shares spread besides, the largest group has more."""
    asked = problem(m=groups * mean, n=512, k=512, groups=groups, ragged=True)
    order = torch.Generator().manual_seed(0)
    for tile_m in (64, 96, 160):
        even, skewed = routings(asked, tile_m)
        assert even.chance + skewed.chance == 1
        owners = torch.randint(groups, (400, asked.m), generator=order)
        rows = torch.nn.functional.one_hot(owners, groups).sum(1)
        tiles = (rows + tile_m - 1) // tile_m
        assert even.tiles == pytest.approx(tiles.sum(1).double().mean().item(), rel=0.05, abs=0.5)
        assert even.most == pytest.approx(tiles.amax(1).median().item(), abs=1)
        assert skewed.most >= even.most


def test_tiles_of_equal_groups_are_counted():
    (only,) = routings(problem(m=300, n=512, k=512, groups=3), 128)
    assert (only.chance, only.tiles, only.turns, only.most) == (1, 9, 3, 3)


def test_choices_of_kernel_and_config_where_groups_are_skewed():
    """Sizes of groups are on the device, which decides by them whether tiles are split, and not of
    which shape they are. The first draw decided what is assumed of them."""
    draws = {1: (1.05, 1.23), 2: (1.09, 1.26), 3: (1.06, 1.23), 4: (1.065, 1.21), 5: (1.11, 1.36)}
    for number, (mean, worst) in draws.items():
        judged = kernel_choice.read(SWEEPS / f"h200_skewed_draw{number}.jsonl")
        regrets = [kernel_choice.regret(each) for each in judged]
        assert len(judged) >= 24
        assert sum(regrets) / len(regrets) <= mean
        assert max(regrets) <= worst


@pytest.mark.parametrize(
    ("draw", "worst"),
    [("rows_draw2", 1.08), ("rows_draw5", 1.07), ("rows_draw6", 1.05), ("mxfp4_rows_draw2", 1.06)],
)
def test_choices_of_kernel_and_config_where_rows_are_few(draw, worst):
    """Either kernel may be the faster. Nothing was fitted to these draws."""
    judged = kernel_choice.read(SWEEPS / f"h200_{draw}.jsonl")
    regrets = [kernel_choice.regret(each) for each in judged]
    assert len(judged) >= 40
    streamed = sum(min(each.streamed.values()) < min(each.tiled.values()) for each in judged)
    assert len(judged) / 10 <= streamed <= 9 * len(judged) / 10
    assert sum(regrets) / len(regrets) <= 1.006
    assert sum(each > 1.07 for each in regrets) <= 1
    assert max(regrets) <= worst


def test_choices_of_kernel_and_config_for_what_is_recorded():
    """The fit knows these products: no choice may undo what docs/performance.md shows."""
    judged = kernel_choice.read(SWEEPS / "h200_recorded_many_rows.jsonl")
    regrets = [kernel_choice.regret(each) for each in judged]
    assert len(judged) >= 130
    assert sum(regrets) / len(regrets) <= 1.004
    assert sum(each > 1.02 for each in regrets) <= 5
    assert max(regrets) <= 1.085


def test_choices_of_kernel_and_config_for_many_experts():
    """With 6 to 90 rows each. What streaming more than 16 takes was fitted to the first draw."""
    judged = kernel_choice.read(SWEEPS / "h200_experts_draw2.jsonl")
    regrets = [kernel_choice.regret(each) for each in judged]
    assert len(judged) >= 40
    assert sum(each.asked.problem.gated for each in judged) >= 10
    assert sum(regrets) / len(regrets) <= 1.02
    assert max(regrets) <= 1.18


def test_choices_of_gradients_on_problems_that_nothing_was_fitted_to():
    judged = fit_gemm.read([SWEEPS / "h200_gradient_draw2.jsonl"])
    regrets = [fit_gemm.regret(each) for each in judged]
    assert len(judged) >= 24
    assert sum(regrets) / len(regrets) <= 1.007
    assert max(regrets) <= 1.05


def test_predictions_on_problems_that_nothing_was_fitted_to(judged):
    """With and without the correction."""
    near = [
        (each.problem, config, time)
        for each in judged
        for config, time in each.times.items()
        if time < 1.5 * min(each.times.values())
    ]
    for expected, limit in ((predicted, 0.025), (cost, 0.05)):
        wrong = [abs(expected(asked, config).microseconds / t - 1) for asked, config, t in near]
        assert median(wrong) < limit


def test_corrections_are_for_the_gpu_that_they_were_measured_on():
    asked = problem(m=500, n=4096, k=4096)
    config = sm90_gemm.configs(asked)[0]
    elsewhere = replace(asked, device=replace(asked.device, sms=114))
    assert correction(asked, config, 50.0) != 1
    assert correction(elsewhere, config, 50.0) == 1
    ragged = replace(asked, m=4000, groups=8, ragged=True, verb="grouped_matmul")
    assert correction(ragged, config, 50.0) == 1


@pytest.mark.parametrize("some", [bs.NVFP4, bs.KBIT5, bs.MXFP8], ids=str)
def test_every_config_fits(some):
    for asked in (
        problem(some, m=500, n=4096, k=4096),
        problem(some, m=500, n=4096, k=4096, out="float32"),
        problem(some, m=900, n=512, k=512, groups=256, ragged=True, verb="grouped_matmul"),
    ):
        configs = list(every_config(asked))
        assert configs
        for config in configs:
            assert shared_bytes(config, asked) <= asked.device.shared_per_cta
            assert config.tile_m * config.tiles_per_warp <= 256


@pytest.mark.parametrize(("experts", "top", "n", "k"), [(128, 4, 2880, 2880), (256, 8, 2048, 7168)])
def test_experts_with_few_rows_each_are_streamed(experts, top, n, k):
    """With 32 rows on average, evenly spread, streaming was 11 to 15% faster than tiles."""
    facts = {"m": 1024 * top, "groups": experts, "ragged": True, "verb": "grouped_gated_matmul"}
    asked = problem(n=n, k=k, gated=True, activation="silu", **facts)
    assert ops.choose(asked).kernel.NAME == "stream"


def test_many_rows_are_its_own_and_few_are_not():
    assert ops.choose(problem(m=16, n=8192, k=8192)).kernel.NAME == "stream"
    assert ops.choose(problem(m=512, n=8192, k=8192)).kernel is sm90_gemm
    assert "is for 33 rows" in sm90_gemm.refuses(problem(m=16, n=8192, k=8192))


def test_x_that_is_read_again_is_what_bounds_a_product():
    """Of 125 MB, by parts of tiles that are each at another k."""
    asked = problem(m=4133, n=1152, k=15168)
    split = next(
        each
        for each in every_config(asked)
        if each.split and (each.tile_m, each.cluster, each.weight_rows) == (256, 1, 128)
    )
    assert cost(asked, split).bound_by == "DRAM"
    whole = fit_gemm.cost(asked, replace(split, split=False))
    assert whole.bound_by == "tensor cores"


def test_refusals():
    refused = sm90_gemm.refuses
    assert "wgmma" in refused(problem(m=512, n=512, k=512, device=gpu("sm_100")))
    assert "does not hold them exactly" in refused(
        problem(bs.KBIT4, m=512, n=512, k=512, x="float16")
    )


def test_five_bits_without_symmetry_have_no_room_for_a_table():
    """Whose table is not known to mirror itself is decoded in registers, with stages instead."""
    asked = problem(bs.KBIT5, m=1024, n=4096, k=4096)
    config = sm90_gemm.configs(asked)[0]
    symmetric, any_table = (dict(each.defines) for each in sm90_gemm.bind(asked, config).builds)
    assert config.shared_table
    assert (symmetric["BS_TABLE_BYTES"], symmetric["BS_STAGES"]) == (32768, config.stages)
    assert any_table["BS_TABLE_BYTES"] == 0
    assert any_table["BS_STAGES"] > config.stages
