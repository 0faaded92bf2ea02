"""Makes the constants of instruction sets of ARM that nobody timed in the CPU products' cost model.

    python -m bench.fit_arm [--write]

No machine with i8mm or bf16 was timed. What is fitted are instructions, which
tests/native/count_arm.py has an emulator count: each is taken for as long as the `fmla` of a large
float32 product, which does four multiply-adds. Needs scipy. It prints how far the model is from the
counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from pprint import pformat

import torch

import blockscale as bs
from bench.fit_cpu import Timed, fit, rounded, summary
from blockscale.formats import Codebook, Format
from blockscale.kernels.matmul.cpu_constants import CONSTANTS, FITTED_ON, Constants, Machine
from blockscale.kernels.matmul.cpu_cost import count, predict
from blockscale.kernels.repack.cpu import CPU_TILES
from blockscale.problem import Kind, Problem
from blockscale.runtime import device_of, native

ROOT = Path(__file__).parents[1]
SWEEP = ROOT / "tests/native/arm_sweep.json"
TARGET = ROOT / "src/blockscale/kernels/matmul/cpu_counted.py"


def _codebook(bits: int) -> Format:
    """With the table of tests/native/one_product.cpp, on which depends how many slices it has."""
    half = 1 << bits - 1
    values = tuple((step + 1) / (half + 1) for step in range(-half, half))
    return replace(bs.KBIT4, name="", element=Codebook(bits=bits, values=values))


FORMATS = {
    "2 bits": _codebook(2),
    "3 bits": _codebook(3),
    "4 bits": _codebook(4),
    "5 bits": _codebook(5),
    "6 bits": bs.MXFP6_E2M3,
    "8 bits, e4m3": bs.MXFP8,
    "8 bits, e5m2": bs.MXFP8_E5M2,
    "4 bits, blocks of 16": bs.NVFP4,
}
K = 1024  # of every product that was counted
# Instructions alone: nothing waits for memory. One thread of the machine that dotprod was timed on.
_TIMED = FITTED_ON["dotprod"]
MACHINE = Machine(1, inf, _TIMED.flops_per_s / _TIMED.threads)
SECONDS = 4 * 2 / MACHINE.flops_per_s  # of an instruction
_ISAS = native.ISAS[native.ISAS.index("neon") :]
_UNTIMED = ("i8mm", "bf16")
_NO_TIME = 1e-9  # seconds: a fit goes by logarithms


def counted(isa: str) -> list[Timed]:
    """The products of an instruction set: where it adds none of its own, those of the one before
    it."""
    found: dict[tuple[Problem, str], tuple[int, float]] = {}
    for case, by, algorithm, rows, n, instructions in json.loads(SWEEP.read_text()):
        level = _ISAS.index(by)
        asked = (_problem(case.removesuffix(", int8"), rows, n), algorithm)
        if level <= _ISAS.index(isa) and level >= found.get(asked, (-1, 0.0))[0]:
            found[asked] = level, SECONDS * instructions
    times: dict[Problem, dict[str, float]] = {}
    for (problem, algorithm), (_, seconds) in found.items():
        times.setdefault(problem, {})[algorithm] = seconds
    return [Timed(problem, isa, MACHINE, seconds, 1.0) for problem, seconds in times.items()]


def _problem(case: str, rows: int, n: int) -> Problem:
    return Problem(
        verb="matmul",
        w=str(Kind(FORMATS[case], CPU_TILES)),
        x="bfloat16",
        out="float32",
        m=rows,
        n=n,
        k=K,
        device=device_of(torch.device("cpu")),
    )


def constants_of(isa: str) -> Constants:
    """What a call costs before its first instruction, which nobody counted, is that of dotprod."""
    timed = CONSTANTS["dotprod"]
    begin = replace(timed, start=_NO_TIME, start_int8=0.0)
    if isa == "bf16":
        eight = {8: 2 * begin.stream[4]}
        begin = replace(begin, shorten=begin.decode, bfmmla={**begin.stream, **eight})
    made = fit(counted(isa), begin, isa)
    return replace(made, start=timed.start, start_int8=timed.start_int8)


def errors(isa: str, constants: Constants) -> list[float]:
    """Predicted over counted, or the reverse: the larger."""
    bare, ratios = replace(constants, start=0.0, start_int8=0.0), []
    for each in counted(isa):
        for algorithm, seconds in each.seconds.items():
            told = predict(count(each.problem, algorithm, isa), bare, MACHINE).seconds
            ratios.append(max(told / seconds, seconds / told))
    return ratios


def write(constants: dict[str, Constants]) -> None:
    head = TARGET.read_text().split("COUNTED = ")[0]
    body = "COUNTED = {\n"
    for isa, each in constants.items():
        told = {field.name: rounded(getattr(each, field.name)) for field in fields(Constants)}
        listed = ", ".join(f"{name}={pformat(value)}" for name, value in told.items() if value)
        body += f"    {isa!r}: Constants({listed}),\n"
    TARGET.write_text(head + body + "}\n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {TARGET.name}; format it then")
    given = parser.parse_args(argv)
    made = {isa: constants_of(isa) for isa in _UNTIMED}
    for isa, constants in made.items():
        print(f"{isa:8} off by a factor of {summary(errors(isa, constants))}")
    if given.write:
        write(made)


if __name__ == "__main__":
    main()
