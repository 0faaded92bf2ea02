"""Draws of problems and configs for the cost model of the streaming kernel."""

import random
from pathlib import Path

import pytest

from bench import sweep
from blockscale import KBIT5, MXFP8
from blockscale.kernels.matmul.stream.choice import ranked_by_prediction
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.space import is_legal

SWEEPS = Path(sweep.__file__).with_name("results") / "sweeps"


def test_a_draw_is_fixed_by_its_seed():
    one, again, other = (sweep.draw(seed, 4, 3, 2) for seed in (7, 7, 8))
    assert one == again
    assert [problem for problem, _ in one] != [problem for problem, _ in other]


@pytest.mark.parametrize("drawn", [sweep.draw_problem, sweep.draw_ragged])
def test_configs_of_a_draw_are_legal_and_different(drawn):
    for problem, configs in sweep.draw(9, 6, 4, 3, drawn=drawn):
        assert len(set(configs)) == len(configs)
        assert all(is_legal(config, facts_of(problem)) for config in configs)
        ranked = ranked_by_prediction(problem)
        assert configs[:4] == ranked[:4]
        tiles = {each.tile_m for each in ranked}
        assert tiles <= {each.tile_m for each in configs}
        assert len(configs) <= 4 + len(tiles) + 3


def test_experts_of_a_draw_have_few_rows_each():
    order = random.Random(1)
    for _ in range(200):
        problem = sweep.draw_ragged(order)
        assert problem.ragged
        assert 0.2 < problem.m / problem.groups < 12


def test_a_plan_comes_back_from_its_file(tmp_path):
    plan = sweep.draw(10, 3, 2, 1)
    sweep.write_plan(plan, tmp_path / "plan.json")
    assert sweep.read_plan(tmp_path / "plan.json") == plan


def test_problems_of_a_stored_sweep_are_planned_again(tmp_path):
    stored = (SWEEPS / "h200_draw12.jsonl").read_text().splitlines()[:3]
    (tmp_path / "old.jsonl").write_text("\n".join(stored))
    plan = sweep.again([tmp_path / "old.jsonl"], best=2, earlier=1)
    assert len(plan) == 3
    for problem, configs in plan:
        assert 2 <= len(set(configs)) == len(configs) <= 4
        assert all(is_legal(config, facts_of(problem)) for config in configs)


@pytest.mark.parametrize("name", ["h200_gemm_draw1.jsonl", "../h200.json"])
def test_what_is_no_sweep_is_refused(name):
    with pytest.raises(SystemExit, match="line 1, is of no such sweep"):
        sweep.again([SWEEPS / name], best=2, earlier=1)


def test_products_of_a_record_are_planned():
    """Those that the streaming kernel takes, of the formats that are asked for."""
    plan = sweep.recorded(SWEEPS.with_name("h200.json"), ["kbit5", "mxfp8"], best=2)
    assert {problem.w_kind.format for problem, _ in plan} == {KBIT5, MXFP8}
    assert {problem.m for problem, _ in plan} == {1, 16, 256}
    assert {(problem.n, problem.k) for problem, _ in plan} >= {(8192, 8192), (5120, 2048)}
    for problem, configs in plan:
        assert all(is_legal(config, facts_of(problem)) for config in configs)


def test_what_is_no_record_is_refused(tmp_path):
    cut = tmp_path / "record.json"
    cut.write_text((SWEEPS.parent / "h200.json").read_text()[:300])
    with pytest.raises(SystemExit, match=r"is no record of bench\.run"):
        sweep.recorded(cut, ["kbit5"], best=2)
