"""What a call costs the host: eager calls one after the other, with nothing waited for.

Twice: while the GPU keeps up, and while it sleeps, so that launches only queue. Then under
gradients, with the backward of each call, and compiled.

    python -m bench.host_cost [--device cpu]

prints the same in a minute. Of a small layer on a CPU, most of the time is the host's cost too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

import blockscale as bs
from bench.cuda_timing import CudaClock
from bench.duel import told
from bench.measurements import Measurement
from bench.random_weights import random_weight
from bench.results import BASELINE, FAILED, TIMED
from bench.timing import Call, Clock, spread
from blockscale.kernels.cuda.layout import fragments
from blockscale.problem import Problem
from blockscale.runtime import Device

WORK = "Cost of a call on the host, 512 x 2048 at M=1"
SHAPE = (512, 2048)
SMALL = (32, 64)  # on a CPU, which multiplies as well
_CALLS = 500  # of a sample
_TEN = 10  # products of a compiled program
_WARM_UP = 5  # calls, after which launches are replayed
_QUEUED = 400  # a queue of launches holds about a thousand
_SLEEP_CYCLES = 100_000_000  # 50 ms
_SAMPLES = 5


def problems(device: Device) -> list[Problem]:
    return []  # one small kernel, compiled at its first call


def measure(clock: Clock, seconds: float) -> Iterator[Measurement]:
    x = torch.randn(1, SHAPE[1], dtype=torch.bfloat16, device=clock.device)
    w = torch.randn(SHAPE, dtype=torch.bfloat16, device=clock.device)
    layout = fragments(bs.NVFP4)
    q, up = (random_weight(bs.NVFP4, SHAPE, layout, clock.device, seed=i) for i in range(2))
    experts = random_weight(bs.NVFP4, (8, *SHAPE), layout, clock.device)
    sizes = torch.tensor([0, 0, 1, 0, 0, 0, 0, 0], device=clock.device)
    calls = {
        "NVFP4": partial(bs.matmul, x, q),
        "NVFP4, gate and up": partial(bs.gated_matmul, x, q, up),
        "NVFP4, experts": partial(bs.grouped_matmul, x, experts, sizes),
        BASELINE: partial(linear, x, w),
    }
    for problem, asleep in (("the GPU keeps up", False), ("the GPU is asleep", True)):
        for name, call in calls.items():
            yield _measure(problem, name, call, asleep)
    yield from _watched(x, q, w)


def _watched(x: Tensor, q: bs.QTensor, w: Tensor) -> Iterator[Measurement]:
    """By autograd and by the compiler; x alone has a gradient."""
    leaf, above = x.clone().requires_grad_(), torch.ones(len(x), len(w)).to(x)
    forwards = {"NVFP4": partial(bs.matmul, leaf, q), BASELINE: partial(linear, leaf, w)}
    for name, forward in forwards.items():
        yield _measure("forward under gradients", name, forward)
    for name, forward in forwards.items():
        yield _measure("forward and backward", name, partial(_backward, forward, leaf, above))
    every = [x + i for i in range(_TEN)]  # a compiler multiplies what is the same but once
    for name, one in (("NVFP4", partial(_times, q)), (BASELINE, partial(linear, weight=w))):
        eager = partial(_each, one, every)
        yield _measure("one of ten", name, eager, products=_TEN)
        compiled = partial(torch.compile(partial(_each, one), fullgraph=True), every)
        yield _measure("one of ten, compiled", name, compiled, products=_TEN)


def _times(q: bs.QTensor, x: Tensor) -> Tensor:
    return bs.matmul(x, q)


def _each(one: Callable[[Tensor], Tensor], every: list[Tensor]) -> list[Tensor]:
    return [one(x) for x in every]


def _backward(forward: Callable[[], Tensor], leaf: Tensor, above: Tensor) -> None:
    torch.autograd.grad(forward(), leaf, above)


def _measure(
    problem: str, name: str, call: Call, asleep: bool = False, products: int = 1
) -> Measurement:
    """products: of a call"""
    try:
        for _ in range(_WARM_UP):
            call()
        samples = [_sample(call, asleep) / products for _ in range(_SAMPLES)]
    except Exception as error:  # noqa: BLE001 reported by name
        return Measurement(
            work=WORK, problem=problem, name=name, outcome=FAILED, reason=told(error)
        )
    return Measurement(work=WORK, problem=problem, name=name, outcome=TIMED, time=spread(samples))


def _sample(call: Call, asleep: bool) -> float:
    """Microseconds per call."""
    on_gpu = torch.cuda.is_available()
    now = time.perf_counter if on_gpu else time.process_time  # a CPU may have others to serve
    count = _QUEUED if asleep else _CALLS
    if on_gpu:
        torch.cuda.synchronize()
    if asleep:
        torch.cuda._sleep(_SLEEP_CYCLES)
    begin = now()
    for _ in range(count):
        call()
    taken = now() - begin
    if on_gpu:
        torch.cuda.synchronize()
    return 1e6 * taken / count


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.host_cost")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    device = parser.parse_args(argv).device
    if device == "cuda":
        found = measure(CudaClock(), 0.0)
    else:
        torch.set_num_threads(1)
        w = torch.randn(SMALL, dtype=torch.bfloat16)
        x = torch.randn(1, SMALL[1], dtype=torch.bfloat16)
        found = _watched(x, bs.quantize(w, bs.NVFP4).prepare(), w)
    for each in found:
        told_time = each.reason if each.time is None else f"{each.time.median:8.1f} us"
        print(f"{each.problem:28} {each.name:20} {told_time}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
