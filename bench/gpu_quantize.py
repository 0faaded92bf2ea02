"""Quantising a bfloat16 matrix on a GPU, beside a copy that moves as many bytes.

A tensor scale has to be found in a pass over the matrix of its own, so formats that have one are
measured with a given one as well; not so where a search takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import blockscale as bs
from bench.conversions import only_reference
from bench.duel import Way, duel
from bench.measurements import Measurement
from bench.timing import Call, Clock, copies
from blockscale.layouts import canonical
from blockscale.numerics import rules_of
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device

FORMATS = (bs.NVFP4, bs.MXFP8, bs.KBIT4)
RULES = ("absmax", "four_over_six", "mse")
WORK = "Quantising bfloat16"
SIDE = 8192
_COPY = "copy of as many bytes"
_CHECKED_ROWS = 256  # quantised by the definition too, which must give the same bytes


def pairs() -> list[tuple[bs.Format, str]]:
    return [(f, rule) for f in FORMATS for rule in RULES if rule in rules_of(f)]


def problems(device: Device) -> list[Problem]:
    return [
        Problem(
            verb="quantize",
            m=m,
            n=0,
            k=SIDE,
            rule=rule,
            x="bfloat16",
            w=str(Kind(format, canonical(format))),
            out="uint8",
            device=device,
        )
        for format, rule in pairs()
        for m in (SIDE, _CHECKED_ROWS)
    ]


def measure(clock: Clock, seconds: float) -> Iterator[Measurement]:
    x = torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=clock.device)
    ring = [x, *(x.clone() for _ in range(copies(x.nbytes, clock.ring_bytes(2)) - 1))]
    for format, rule in pairs():
        yield from _measure(format, rule, None, ring, clock, seconds)
        if format.has_tensor_scale and rule != "mse":
            given = bs.quantize(x, format).tensor_scale
            yield from _measure(format, rule, given, ring, clock, seconds)


def _measure(
    format: bs.Format,
    rule: str,
    tensor_scale: Tensor | None,
    ring: list[Tensor],
    clock: Clock,
    seconds: float,
) -> list[Measurement]:
    moved = ring[0].numel() * (16 + format.bits_per_value) / 8
    quantize = partial(bs.quantize, format=format, scale=rule, tensor_scale=tensor_scale)
    given = "" if tensor_scale is None else ", tensor scale given"
    ways = [
        Way(
            f"{format.name.upper()} {rule}{given}",
            lambda: [partial(quantize, each) for each in ring],
            lambda: _differs(ring[0][:_CHECKED_ROWS], quantize),
        ),
        Way(_COPY, lambda: _copies(int(moved), clock)),
    ]
    problem = f"{SIDE} x {SIDE}"
    return duel(WORK, problem, ways, clock, seconds, beside=_COPY, tolerance=0.0)


def _copies(moved: int, clock: Clock) -> list[Call]:
    """Half of the bytes are read and half are written."""
    half = moved // 2
    memory = [
        torch.randint(0, 256, (half,), dtype=torch.uint8, device=clock.device) for _ in range(4)
    ]
    return [partial(memory[i].copy_, memory[i + 1]) for i in (0, 2)]


def _differs(x: Tensor, quantize: Callable[[Tensor], bs.QTensor]) -> float:
    """0 where all bytes are those of the definition."""
    ours = quantize(x)
    with only_reference("quantize"):
        wanted = quantize(x)
    return 0.0 if ours == wanted else 1.0
