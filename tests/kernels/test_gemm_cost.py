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
from blockscale.kernels.matmul.sm90_gemm.shared_memory import shared_bytes
from blockscale.kernels.matmul.sm90_gemm.space import every_config
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu


def problem(fmt=bs.NVFP4, **facts):
    facts = {"verb": "matmul", "x": "bfloat16", "out": "bfloat16", "device": gpu("sm_90"), **facts}
    return Problem(w=str(Kind(fmt, fragments(fmt))), **facts)


@pytest.fixture(scope="module")
def judged():
    """Draws that no constant was fitted to."""
    return fit_gemm.read(SWEEPS / f"h200_gemm_draw{number}.jsonl" for number in (2, 3, 4))


def test_choices_on_problems_that_nothing_was_fitted_to(judged):
    """Some of them with clusters that share the k of a tile among the best."""
    assert len(judged) >= 190
    assert sum(any(config.k_parts > 1 for config in each.times) for each in judged) >= 40
    *others, worst = sorted(fit_gemm.regret(each) for each in judged)
    assert median(others) <= 1.03
    assert max(others) <= 1.1
    assert worst <= 1.13


def test_choices_where_tiles_are_about_as_many_as_sms():
    """Most of them gated, with parts of tiles that are short. Nothing was fitted to either draw."""
    judged = fit_gemm.read(SWEEPS / f"h200_few_tiles_draw{number}.jsonl" for number in (1, 2))
    regrets = [fit_gemm.regret(each) for each in judged]
    assert len(judged) >= 40
    assert sum(each.problem.gated for each in judged) >= 20
    assert sum(regrets) / len(regrets) <= 1.01
    assert max(regrets) <= 1.08


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


def test_choices_of_kernel_and_config_where_rows_are_few():
    """Either kernel may be the faster. That of the Hopper GEMM was fitted to the first draw."""
    draws = [SWEEPS / f"h200_rows_draw{number}.jsonl" for number in (2, 3, 4, 5)]
    judged = [each for draw in draws for each in kernel_choice.read(draw)]
    regrets = [kernel_choice.regret(each) for each in judged]
    assert len(judged) >= 240
    assert sum(min(each.streamed.values()) < min(each.tiled.values()) for each in judged) >= 60
    assert sum(regrets) / len(regrets) <= 1.01
    assert sum(each > 1.1 for each in regrets) <= 5
    assert max(regrets) <= 1.19


def test_choices_of_kernel_and_config_for_few_rows_of_mxfp4():
    """Timed since its units have no branch, which no model knows: both expect 6 to 10% more."""
    draws = [SWEEPS / f"h200_mxfp4_rows_draw{number}.jsonl" for number in (1, 2)]
    judged = [each for draw in draws for each in kernel_choice.read(draw)]
    regrets = [kernel_choice.regret(each) for each in judged]
    assert len(judged) >= 80
    assert sum(regrets) / len(regrets) <= 1.011
    assert max(regrets) <= 1.13


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
    assert len(judged) >= 24
    *others, worst = sorted(fit_gemm.regret(each) for each in judged)
    assert max(others) <= 1.04
    assert worst <= 1.14


def test_predictions_on_problems_that_nothing_was_fitted_to(judged):
    wrong = [
        abs(fit_gemm.cost(each.problem, config).microseconds / time - 1)
        for each in judged
        for config, time in each.times.items()
        if time < 1.5 * min(each.times.values())
    ]
    assert median(wrong) < 0.06


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
    assert fit_gemm.cost(asked, split).bound_by == "DRAM"
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
