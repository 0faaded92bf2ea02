"""What a call costs the host: eager calls one after the other, with nothing waited for.

Twice: while the GPU keeps up, and while it sleeps, so that launches only queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import linear

import blockscale as bs
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
_CALLS = 2000  # of a sample
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


def _measure(problem: str, name: str, call: Call, asleep: bool) -> Measurement:
    try:
        call()
        samples = [_sample(call, asleep) for _ in range(_SAMPLES)]
    except Exception as error:  # noqa: BLE001 reported by name
        return Measurement(
            work=WORK, problem=problem, name=name, outcome=FAILED, reason=told(error)
        )
    return Measurement(work=WORK, problem=problem, name=name, outcome=TIMED, time=spread(samples))


def _sample(call: Call, asleep: bool) -> float:
    """Microseconds per call."""
    count = _QUEUED if asleep else _CALLS
    torch.cuda.synchronize()
    if asleep:
        torch.cuda._sleep(_SLEEP_CYCLES)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    taken = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e6 * taken / count
