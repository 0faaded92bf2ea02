"""Quantising and dequantising, beside the definition in plain torch.

Both sides are the same public call. For the definition every kernel but the last of the verb is
taken away, and the last is `reference`, the definition itself. (The largest value of a matrix,
which its tensor scale needs, is found in the same way on both sides.) Conversions are exact, so the
check is that both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

import blockscale as bs
from bench.results import TIMED, WRONG, Conversion
from bench.timing import Clock, ratio, spread, take_turns
from blockscale import ops
from blockscale.kernels import KERNELS
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem
from blockscale.runtime import device_of

FORMAT = bs.NVFP4
RULES = ("absmax", "four_over_six", "mse")


def convert(n: int, k: int, clock: Clock, seconds: float) -> Iterator[Conversion]:
    """Each conversion, as it is done."""
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(0)).bfloat16()
    for rule in RULES:
        problem = _problem("quantize", n, k, rule)
        yield _compare(
            problem, lambda rule=rule: bs.quantize(w, FORMAT, scale=rule), clock, seconds
        )
    q = bs.quantize(w, FORMAT)
    problem = _problem("dequantize", n, k)
    yield _compare(problem, lambda: q.dequantize(torch.bfloat16), clock, seconds)


def _compare(
    problem: Problem, ours: Callable[[], bs.QTensor | Tensor], clock: Clock, seconds: float
) -> Conversion:
    def reference() -> bs.QTensor | Tensor:
        with only_reference(problem.verb):
            return ours()

    name = f"{problem.verb} {FORMAT.name.upper()} {problem.rule}".rstrip()
    kernel = ops.choose(problem).kernel.NAME
    facts = {"name": name, "n": problem.m, "k": problem.k, "kernel": kernel}
    if not _same(ours(), reference()):
        return Conversion(**facts, outcome=WRONG, reason="its bytes are not those of the reference")
    sides = {"ours": clock.stopwatch([ours]), "reference": clock.stopwatch([reference])}
    samples = take_turns(sides, seconds)
    times = {side: spread([1e6 * sample for sample in taken]) for side, taken in samples.items()}
    return Conversion(
        **facts,
        outcome=TIMED,
        time=times["ours"],
        reference=times["reference"],
        ratio=ratio(samples["reference"], samples["ours"]),
    )


@contextmanager
def only_reference(verb: str) -> Iterator[None]:
    """Choices are remembered by problem, and must be forgotten on the way in and out."""
    with patch.dict(KERNELS, {verb: KERNELS[verb][-1:]}):
        ops.choose.cache_clear()
        yield
    ops.choose.cache_clear()


def _same(a: bs.QTensor | Tensor, b: bs.QTensor | Tensor) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)


def _problem(verb: str, n: int, k: int, rule: str = "") -> Problem:
    return Problem(
        verb=verb,
        m=n,
        n=0,
        k=k,
        rule=rule,
        x="bfloat16",
        w=str(Kind(FORMAT, canonical(FORMAT))),
        out="uint8" if verb == "quantize" else "bfloat16",
        device=device_of(torch.device("cpu")),
    )
