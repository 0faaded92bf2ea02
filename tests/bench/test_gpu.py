"""What of the measurements on GPUs can be tested without one: the rest is plain data and torch."""

import time
from dataclasses import replace
from functools import partial

import pytest
import torch

import blockscale as bs
from bench import batched_gemv, experts, gpu_quantize
from bench.compile import compile_all
from bench.contest import contest
from bench.cuda_timing import MAX_CALLS, SAMPLE_SECONDS, repeats, ring_bytes
from bench.decoded import decoded
from bench.problems import EXPERT_LAYERS, ExpertLayer
from bench.random_weights import random_weight
from bench.results import BASELINE, TIMED
from bench.rivals import FORMATS, TorchLinear, cuda_field
from bench.rivals.blockscale_cuda import BlockscaleCuda
from bench.rivals.contract import Rival
from bench.rivals.cuda_read import build
from bench.rivals.humming import ranges
from bench.timing import CpuClock
from blockscale.kernels.cuda.layout import fragments
from blockscale.layouts import canonical
from blockscale.runtime import device_of, gpu

SMALL = ExpertLayer(model="small", experts=8, top=2, hidden=64, inner=32)


class SmallRings(CpuClock):
    def ring_bytes(self, rivals):
        return 1


def test_a_ring_is_larger_than_the_cache_and_fits_memory():
    assert ring_bytes(60, 10**6, 10) == 180
    assert ring_bytes(60, 1000, 10) == 50


def test_a_replay_fills_a_sample():
    assert repeats(SAMPLE_SECONDS / 10, 4) == 10
    assert repeats(1.0, 4) == 1
    assert repeats(1e-9, 4) * 4 == MAX_CALLS


@pytest.mark.parametrize("some", FORMATS, ids=str)
@pytest.mark.parametrize("place", [canonical, fragments])
def test_random_weights_are_finite(some, place):
    q = random_weight(some, (64, 256), place(some), "cpu")
    values = q.dequantize(torch.float32)
    assert values.isfinite().all()
    assert values.unique().numel() > 2 ** (some.element.bits - 1)  # an exponent less, but scales
    assert 1e-3 < values.std() < 100
    stored = 8 * (q.codes.nbytes + q.scale.nbytes) / q.numel()
    assert stored == pytest.approx(some.bits_per_value)


def test_every_size_of_weight_has_a_ceiling():
    rivals = cuda_field(FORMATS, [1, 2])
    read = {(rival.bits, rival.only_rows) for rival in rivals if rival.role == "ceiling"}
    for rival in rivals:
        if rival.role == "ours":
            assert (rival.format.bits_per_value, rival.only_rows) in read
    assert (16.0, ()) in read
    assert len({rival.name for rival in rivals}) == len(rivals)


def test_rivals_can_be_left_out():
    names = {rival.name for rival in cuda_field([bs.NVFP4], [1], [])}
    assert {"torch bfloat16", "NVFP4"} < names
    assert not any("humming" in name or "bitsandbytes" in name for name in names)


def test_ours_pass_the_check_in_the_layout_of_gpus(monkeypatch):
    cpu = device_of(torch.device("cpu"))
    monkeypatch.setattr("bench.rivals.blockscale_cuda._device", lambda: cpu)
    rivals = [TorchLinear(torch.bfloat16), *map(BlockscaleCuda, FORMATS)]
    (case,) = contest(48, 256, [3], rivals, SmallRings(), 1e-4)
    for entry in case.entries:
        assert entry.outcome == TIMED, entry.reason
    assert case.entry("KBIT3").weight_bytes * 8 == 48 * 256 * 3.25


class Compiles(Rival):
    def __init__(self, name, *jobs):
        self.name, self.jobs = name, jobs

    def compilations(self, shapes, rows):
        return list(self.jobs)

    def prepare(self, w):
        raise NotImplementedError


def test_who_compiles_too_long_is_left_out():
    done = []
    rivals = [
        Compiles("quick", lambda: done.append(1)),
        Compiles("broken", lambda: 1 / 0),  # is reported where it is used
        Compiles("slow", lambda: time.sleep(0.5), lambda: done.append(2)),
    ]
    late = compile_all(rivals, [(64, 64)], [1], 0.2)
    assert list(late) == ["slow"]
    assert "1 of its kernels" in late["slow"]
    assert 1 in done


def test_the_read_is_one_source_in_two_ways():
    assert build(overlap=True).path.is_file()
    assert build(overlap=True) != build(overlap=False)


def test_ranges_of_rows():
    choices = [[0, 8, "a"], [8, 16, "b"], [16, 24, "c"], [24, 1 << 30, "d"]]
    assert ranges(choices, [1, 8, 16]) == choices[:2]
    assert ranges(choices, [64]) == choices[3:]


@pytest.mark.parametrize("layer", EXPERT_LAYERS, ids=lambda layer: layer.model)
@pytest.mark.parametrize("tokens", [1, 16])
def test_every_token_has_its_experts(layer, tokens):
    found = experts.routings(layer, tokens, 5)
    assert len(found) == 5
    for sizes in found:
        assert sizes.shape == (layer.experts,)
        assert sizes.sum() == tokens * layer.top
        assert sizes.max() <= tokens
    if tokens == 1:  # no expert comes back at once
        assert sum(found).max() == 1


def test_a_ring_of_routings_reads_more_than_the_cache():
    count = experts.calls_of_a_ring(SMALL, 1, expert_bytes=100, cache=1000)
    assert count * SMALL.top * 100 >= 3000
    assert experts.calls_of_a_ring(SMALL, 1, 10**9, cache=1000) == experts.FEWEST_CALLS
    assert experts.calls_of_a_ring(SMALL, 1, 1, 10**9) == experts.MOST_CALLS


@pytest.mark.parametrize("some", experts.FORMATS, ids=str)
def test_the_check_of_experts_passes_and_fails(some):
    weights = experts._weights(SMALL, some, "cpu")
    (sizes,) = experts.routings(SMALL, 4, 1)
    x = torch.randn(8, SMALL.hidden).bfloat16()
    y = experts._layer(x, weights, sizes)

    def exact(expert):
        return [experts._exact(q, expert) for q in weights]

    assert experts.worst_row(y, x, sizes.tolist(), exact) <= experts._TOLERANCE
    wrong = y.clone()
    wrong[0] = -wrong[0]
    assert experts.worst_row(wrong, x, sizes.tolist(), exact) > 1
    wrong[0] = float("nan")
    assert not experts.worst_row(wrong, x, sizes.tolist(), exact) <= 1


def test_torch_multiplies_the_same_experts():
    plain = experts._plain_weights(SMALL, "cpu", torch.Generator().manual_seed(0))
    (sizes,) = experts.routings(SMALL, 4, 1)
    x = torch.randn(8, SMALL.hidden).bfloat16()
    y = experts._plain_layer(x, plain, sizes.cumsum(0, dtype=torch.int32))
    error = experts.worst_row(y, x, sizes.tolist(), lambda e: experts._plain_exact(plain, e))
    assert error <= experts._TOLERANCE


def test_routing_is_measured_alone():
    x = torch.randn(8, SMALL.hidden).bfloat16()
    (found,) = experts._measure_routing(SMALL, 4, x, SmallRings(), 0.01)
    assert found.outcome == TIMED, found.reason
    assert found.work == experts.ROUTING
    assert found.other is found.ratio is None
    assert found.error <= 1e-6


def test_the_check_of_batches():
    w = random_weight(bs.NVFP4, (2, 32, 64), fragments(bs.NVFP4), "cpu")
    x = random_weight(bs.NVFP4, (2, 1, 64), canonical(bs.NVFP4), "cpu", seed=1)
    x = replace(x, tensor_scale=torch.ones(2, 1))
    assert batched_gemv._error(x, w) <= batched_gemv._TOLERANCE
    assert [(each.n, each.k, each.batch) for each in batched_gemv.SHAPES] == [
        (7168, 16384, 1),
        (4096, 7168, 8),
        (7168, 2048, 4),
    ]


def test_the_check_of_quantising():
    quantize = partial(bs.quantize, format=bs.NVFP4, scale="mse")
    assert gpu_quantize._differs(torch.randn(4, 64).bfloat16(), quantize) == 0.0
    assert (bs.NVFP4, "four_over_six") in gpu_quantize.pairs()
    assert (bs.MXFP8, "mse") in gpu_quantize.pairs()


@pytest.mark.parametrize("work", [experts, batched_gemv, gpu_quantize])
def test_what_is_compiled_beforehand_are_real_problems(work):
    for problem in work.problems(gpu("sm_90")):
        assert problem.target == "sm_90"
        assert str(problem)


def test_the_baseline_is_named_as_in_the_tables():
    assert TorchLinear(torch.bfloat16).name == BASELINE


def test_a_kernel_that_decodes_otherwise_is_not_believed(monkeypatch):
    q = random_weight(bs.KBIT4, (80, 64), fragments(bs.KBIT4), "cpu")
    assert torch.equal(decoded(q), q.dequantize(torch.float32))
    values = q.dequantize(torch.float32)
    values[70, 5] += 1
    real = bs.QTensor.dequantize
    monkeypatch.setattr(
        bs.QTensor, "dequantize", lambda q, dtype: values if len(q) == 80 else real(q, dtype)
    )
    with pytest.raises(ValueError, match="rows 64 to 80"):
        decoded(q)
