"""Draws of problems and configs for the cost model of the streaming kernel."""

from bench import sweep
from blockscale.kernels.matmul.stream.space import is_legal


def test_a_draw_is_fixed_by_its_seed():
    one, again, other = (sweep.draw(seed, 4, 3, 2) for seed in (7, 7, 8))
    assert one == again
    assert [problem for problem, _ in one] != [problem for problem, _ in other]


def test_configs_of_a_draw_are_legal_and_different():
    for problem, configs in sweep.draw(9, 6, 4, 3):
        assert len(set(configs)) == len(configs) <= 7
        assert all(is_legal(config, problem) for config in configs)


def test_a_plan_comes_back_from_its_file(tmp_path):
    plan = sweep.draw(10, 3, 2, 1)
    sweep.write_plan(plan, tmp_path / "plan.json")
    assert sweep.read_plan(tmp_path / "plan.json") == plan
