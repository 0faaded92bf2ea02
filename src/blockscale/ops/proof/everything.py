"""Every kernel that a GPU could run, proven one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from blockscale.formats import Format
from blockscale.kernels import KERNELS, Kernel
from blockscale.layouts import canonical
from blockscale.ops.examples import example
from blockscale.ops.proof.apart import Prover
from blockscale.ops.proof.standing import prove
from blockscale.ops.proof.subject import small_problems
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device


@dataclass(frozen=True)
class Outcome:
    verb: str
    kernel: str
    format: str
    x: str
    w: str
    state: str
    failure: str
    seconds: float


def to_prove(
    device: Device, formats: Sequence[Format], verbs: Sequence[str]
) -> list[tuple[Kernel, Problem, Format]]:
    """What there is to prove: kernels by verb and format, weights as they are stored and as
    `prepare` places them, x plain and quantised alike."""
    found: dict[tuple[str, str, str, str], tuple[Kernel, Problem, Format]] = {}
    for verb in verbs:
        for format in formats:
            for problem in _examples(verb, format, device):
                for kernel in KERNELS[verb][:-1]:
                    if small_problems(kernel, problem):
                        key = verb, kernel.NAME, problem.x, problem.w
                        found.setdefault(key, (kernel, problem, format))
    return list(found.values())


def prove_all(
    device: torch.device, listed: Sequence[tuple[Kernel, Problem, Format]]
) -> Iterator[Outcome]:
    """Each when it is done. What the tests of the library have shown is shown once more."""
    with Prover(device) as prover:
        for kernel, problem, format in listed:
            start = time.perf_counter()
            failure = prove(prover, problem, kernel, None, device)
            yield Outcome(
                problem.verb,
                kernel.NAME,
                format.name,
                problem.x,
                problem.w,
                "failed" if failure else "proven",
                failure,
                time.perf_counter() - start,
            )


def _examples(verb: str, format: Format, device: Device) -> Iterator[Problem]:
    layouts = dict.fromkeys((None, canonical(format)))  # None: as `prepare` places them
    plain, coded = "bfloat16", str(Kind(format, canonical(format)))
    for layout in layouts:
        for x in (plain, coded) if verb.endswith("matmul") else (plain,):
            problem = example(verb, format, device, m=16, x=x, layout=layout)
            if problem is not None:
                yield problem
