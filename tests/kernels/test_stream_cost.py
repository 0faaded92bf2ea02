"""The choice of a config for the streaming CUDA kernel: what is legal, and what is predicted to be
fast, held to what was measured. No GPU is needed."""

import itertools
import json
import math
from dataclasses import asdict, replace
from statistics import mean

import pytest

import blockscale as bs
from bench import exceptions, fit_stream, kernel_choice
from bench.sweep import problem_of, record_of
from blockscale import ops
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul.fragments.network import Layer, evaluate
from blockscale.kernels.matmul.sm90_gemm.choice import gemm_configs
from blockscale.kernels.matmul.stream.choice import (
    predicted,
    ranked_by_prediction,
    stream_configs,
)
from blockscale.kernels.matmul.stream.correction import correction
from blockscale.kernels.matmul.stream.cost import cost
from blockscale.kernels.matmul.stream.exceptions import TABLE, exception
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.occupancy import (
    asked_shared,
    ctas_of_busiest,
    padded_shared,
)
from blockscale.kernels.matmul.stream.space import every_config, is_legal
from blockscale.kernels.matmul.stream.work import count
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu

SWEEPS = fit_stream.SWEEPS
SM_BYTES, RESERVED = 228 * 1024, 1024  # shared memory of a Hopper SM, and of it for each CTA


def problem(fmt=bs.NVFP4, **facts):
    facts = {"verb": "matmul", "x": "bfloat16", "out": "bfloat16", "device": gpu("sm_90"), **facts}
    return Problem(w=str(Kind(fmt, fragments(fmt))), **facts)


def some_problems():
    for fmt, m, (n, k) in itertools.product(
        (bs.NVFP4, bs.KBIT4, bs.MXFP8_E5M2), (1, 5, 16, 100), ((512, 4096), (9000, 1024))
    ):
        yield problem(fmt, m=m, n=n, k=k)
        yield problem(fmt, m=m, n=n, k=k, gated=True, activation="silu")
        yield problem(fmt, m=m, n=n, k=k, ragged=True, groups=64)


def test_whatever_is_enumerated_is_legal_and_stands_once():
    for asked in some_problems():
        facts = facts_of(asked)
        every = list(every_config(facts))
        assert every, asked
        assert len(every) == len(set(every))
        assert all(is_legal(each, facts) for each in every), asked


def test_an_sm_holds_the_ctas_of_a_config_and_no_other():
    """Or CTAs of the next kernel would crowd beside them."""
    for asked in some_problems():
        facts = facts_of(asked)
        for config in stream_configs(asked)[:5]:
            shared = padded_shared(config, facts)
            assert config.ctas_per_sm <= ctas_of_busiest(config, facts, config.splits)
            assert config.ctas_per_sm * (shared + RESERVED) <= SM_BYTES
            assert (config.ctas_per_sm + 1) * (shared + RESERVED) > SM_BYTES


def test_a_config_with_more_ctas_than_an_sm_held_is_not_legal():
    """By the stored sweeps: 5 or 6 CTAs whose warps meet at named barriers, of which 4 ran."""
    held = {True: 0, False: 0}
    for path in SWEEPS.glob("h200_draw*.jsonl"):
        for facts, rows in map(json.loads, path.read_text().splitlines()):
            asked = problem_of(facts)
            for numbers, ran, spilled, _ in rows:
                config = fit_stream.read_config(numbers)
                if config.ctas_per_sm > 4 and not spilled:
                    fits = config.ctas_per_sm <= ran
                    held[fits] += 1
                    assert fits or not is_legal(config, facts_of(asked)), (asked, config)
    assert min(held.values()) > 200


def test_without_early_starts_no_memory_is_asked_for_in_vain():
    asked = problem(m=1, n=2048, k=4096, device=gpu("sm_80"))
    facts, config = facts_of(asked), stream_configs(asked)[0]
    assert padded_shared(config, facts) == asked_shared(config, facts)


def test_codes_of_few_rows_are_decoded_by_the_product_itself():
    x = str(Kind(bs.NVFP4, bs.layouts.canonical(bs.NVFP4)))
    for m in (1, 3, 4):
        asked = problem(m=m, n=7168, k=2048, x=x, groups=4)
        assert all(each.tile_m < 8 for each in stream_configs(asked))


def test_rows_of_one_tile_get_one_choice():
    """A choice takes tens of milliseconds, and a server meets every number of rows."""
    for low, high in ((3, 4), (9, 16), (65, 96)):
        a, b = (problem(m=m, n=4096, k=4096) for m in (low, high))
        assert stream_configs(a) is stream_configs(b)
    assert stream_configs(problem(m=1, n=4096, k=4096, bias=True, out="float32")) is stream_configs(
        problem(m=1, n=4096, k=4096)
    )


def test_experts_without_rows_cost_nothing():
    few, many = (problem(m=m, n=512, k=2048, ragged=True, groups=256) for m in (4, 4096))
    assert 3.9 < few.busy_matrices < 4
    assert 255 < many.busy_matrices <= 256
    facts, config = facts_of(few), stream_configs(few)[0]
    every = few.busy_matrices * config.output_tiles(facts)
    assert count(config, facts).ctas == pytest.approx(every)


def test_predictions_grow_with_the_work():
    for fmt in (bs.NVFP4, bs.KBIT5):
        config = stream_configs(problem(fmt, m=16, n=16384, k=8192))[0]
        config = replace(config, splits=1)
        times = [
            cost(count(config, facts_of(problem(fmt, m=16, n=n, k=k)))).microseconds
            for n, k in ((4096, 2048), (4096, 8192), (16384, 8192), (65536, 8192))
        ]
        assert times == sorted(times)
        floor = problem(fmt, m=16, n=65536, k=8192).bytes / 4.8e6
        assert times[-1] > floor  # no config beats the memory


@pytest.mark.parametrize(("draw", "problems"), [("draw22", 84), ("ragged_draw8", 40)])
def test_choices_hold_on_problems_that_were_not_fitted(draw, problems):
    """Judged is the config that the library takes, over the best of all that were measured. It may
    be one that spills registers, which nobody knows before it is compiled."""
    timed = {}
    for each in fit_stream.read([SWEEPS / f"h200_{draw}.jsonl"], spilling=True, spare=True):
        timed.setdefault(each.problem, {})[each.config] = each.relative
    regrets = sorted(own[ranked_by_prediction(asked)[0]] for asked, own in timed.items())
    assert len(regrets) == problems
    assert regrets[len(regrets) // 2] < 1.005
    assert mean(regrets) < 1.015
    assert regrets[-1] < 1.1


def test_corrections_are_of_the_gpu_that_was_measured():
    here = problem(m=8, n=10688, k=1536)
    config = ranked_by_prediction(here)[0]
    for device, corrected in ((gpu("sm_90"), True), (gpu("sm_80"), False), (gpu("sm_120"), False)):
        asked = replace(here, device=device)
        work = count(config, facts_of(asked))
        expected = cost(work)
        factor = correction(work, expected)
        assert (factor != 1) == corrected
        assert predicted(asked, config).microseconds == factor * expected.microseconds


def test_a_correction_is_evaluated_layer_by_layer():
    layers = [Layer([[1.0, -2.0], [0.5, 0.0]], [0.25, 0.0]), Layer([[2.0, -1.0]], [0.125])]
    expected = 2 * math.tanh(3 - 2 + 0.25) - math.tanh(1.5) + 0.125
    assert evaluate(layers, [3.0, 1.0]) == pytest.approx(expected)


def test_timings_are_of_the_ctas_that_an_sm_held(tmp_path):
    asked = problem(m=1, n=4096, k=4096)
    facts = record_of(asked)
    config = next(each for each in every_config(facts_of(asked)) if each.ctas_per_sm == 2)
    numbers = [int(value) for value in asdict(replace(config, ctas_per_sm=1)).values()]
    (tmp_path / "sweep.jsonl").write_text(json.dumps([facts, [[numbers, 2, 0, 9.5]]]))
    (timing,) = fit_stream.read([tmp_path / "sweep.jsonl"])
    assert timing.config == config
    assert timing.work.resident == 2


def test_exceptions_are_those_of_the_stored_sweeps():
    exceptional = exceptions.exceptions(
        [SWEEPS / "h200_recorded_shapes.jsonl"], [SWEEPS / "h200_recorded_many_rows.jsonl"]
    )
    assert len(exceptional) == len(json.loads(TABLE.read_text())["problems"])
    for each in exceptional:
        known = exception(each.problem)
        assert known is not None
        assert known[:3] == each[1:]
        assert is_legal(known.config, facts_of(each.problem))
    for asked, config, *_ in exceptional[::9]:
        assert stream_configs(asked)[0] == config
        assert "measured on NVIDIA H200" in str(predicted(asked, config))


@pytest.mark.parametrize(("m", "streams"), [(100, False), (48, True)])
def test_a_wrong_choice_between_kernels_is_an_exception(m, streams):
    """Where the Hopper GEMM is predicted to be the faster, and the stream kernel was."""
    asked = problem(m=m, n=30000, k=8192)
    tiled, streamed = gemm_configs(asked)[:2], stream_configs(asked)[:2]
    assert (ops.explain(asked).kernel == "stream") == streams

    def found(gemm, stream):
        times = dict(zip(tiled, gemm, strict=True)), dict(zip(streamed, stream, strict=True))
        return exceptions.of_kernels([kernel_choice.Timed(kernel_choice.Asked(asked), *times)])

    told = [] if streams else [(asked, streamed[1], 10.0, 10.2)]
    assert found((10.2, 10.4), (10.3, 10.0)) == told
    assert not found((10.1, 10.4), (10.3, 10.0))  # within what clocks tell apart
    assert not found((10.2, 9.9), (10.3, 10.0))  # another config of the same kernel is the best
    assert not found((10.2, 10.4), (10.3, 10.5))


@pytest.fixture
def exceptional():
    """A problem whose first config by prediction is not the best one measured."""
    lines = (SWEEPS / "h200_recorded_shapes.jsonl").read_text().splitlines()
    asked = (problem_of(json.loads(line)[0]) for line in lines)
    return next(each for each in asked if each.m == 1 and not each.ragged and exception(each))


def test_a_config_that_was_measured_is_not_said_to_be_predicted(exceptional):
    told = str(ops.explain(exceptional))
    assert "chosen   by rule: its config was measured to be the fastest" in told
    assert "expects " in told


def test_exceptions_are_of_one_gpu(exceptional):
    assert exception(exceptional) is not None
    assert exception(replace(exceptional, device=gpu("sm_80"))) is None
    assert exception(replace(exceptional, n=exceptional.n + 16)) is None


def test_a_prediction_says_what_bounds_it_and_what_comes_next():
    told = str(ops.explain(problem(m=1, n=30000, k=4096))).splitlines()
    expected, second = (line for line in told if line.split()[0] in ("expects", "next"))
    assert " us, bound by " in expected
    assert ", with tile " in second
