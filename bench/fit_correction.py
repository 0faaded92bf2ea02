"""Fits the corrections of predicted times to stored sweeps, and judges the choices.

    python -m bench.fit_correction stream FIT.jsonl ... [--judge OTHER.jsonl ...] [--write]
    python -m bench.fit_correction gemm FIT.jsonl ... [--judge OTHER.jsonl ...] [--write]

Of the stream kernel (bench.sweep, bench.kernel_choice) or the Hopper GEMM (bench.gemm_sweep,
bench.kernel_choice). bench/networks.py says how they learn. Problems that `--judge` has are left
out of the fit wherever they stand.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench import fit_gemm, fit_stream, gemm_sweep, kernel_choice
from bench.networks import Networks, Shape, Timed, fit, write
from bench.sweep import draw_problem
from blockscale.formats import MXFP4, NVFP4, Format
from blockscale.kernels.input_grad.sm90_gemm import as_product
from blockscale.kernels.matmul.fragments.network import Layer, evaluate
from blockscale.kernels.matmul.sm90_gemm import correction as gemm_correction
from blockscale.kernels.matmul.sm90_gemm import cost as gemm_cost
from blockscale.kernels.matmul.sm90_gemm.space import every_config
from blockscale.kernels.matmul.stream import choice as stream_choice
from blockscale.kernels.matmul.stream import correction as stream_correction
from blockscale.kernels.matmul.stream import cost as stream_cost
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.representative import representative
from blockscale.kernels.matmul.stream.work import count
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem

# Sweeps of kernels as they were: streamed E2M1 and E2M3 took more instructions to decode, and MXFP4
# had a branch in each unit of both kernels.
_MORE_INSTRUCTIONS = {f"h200_draw{number}.jsonl" for number in range(1, 13)}
_BRANCHES = {
    *_MORE_INSTRUCTIONS,
    "h200_draw13.jsonl",
    *(f"h200_gemm_draw{number}.jsonl" for number in range(1, 5)),
}
# Sweeps that timed ragged groups on as many routings as read 150 MB of weights. Of launches that
# read more than this there were fewer than eight: they tell of single routings.
_FEW_ROUTINGS, _ROUTING_BYTES = {f"h200_draw{number}.jsonl" for number in range(1, 18)}, 20e6
_NEAR = 1.3  # times the least prediction: what the GEMM's network is taught about
_CODED = 8  # every so many problems of the stream kernel with x in NVFP4


class Launched(NamedTuple):
    """A timing, and what is counted of the launch."""

    problem: Problem  # as the sweep asked for it
    microseconds: float
    predicted: float  # microseconds, without a correction
    facts: list[float]
    before: bool = False  # timed when the kernel decoded such weights by more instructions


class Kernel(Protocol):
    SHAPE: Shape
    TABLE: Path

    def read(self, paths: Sequence[str]) -> list[Launched]: ...
    def untimed(self) -> Iterator[list[float]]: ...


class Stream:
    SHAPE = Shape(hidden=(64, 32), near=0.10, level=0.05, steps=2500, lessons=24000)
    TABLE = stream_correction.TABLE
    _PROBLEMS = 3000
    _BESIDE = 300  # of each kind that the Hopper GEMM takes too

    def read(self, paths: Sequence[str]) -> list[Launched]:
        return [
            Launched(
                each.problem,
                each.microseconds,
                *self._counted(each.problem, each.config),
                before=_is_old(path, each.problem.w_kind.format, "e2m1", "e2m3"),
            )
            for path in paths
            for each in fit_stream.read([path])
            if not _on_few_routings(path, each.problem)
        ]

    def _counted(self, problem: Problem, config: Any) -> tuple[float, list[float]]:
        """As the choice of a config sees the problem."""
        work = count(config, facts_of(representative(problem)))
        expected = stream_cost.cost(work)
        uneven = stream_cost.unevenness(work)
        return expected.microseconds * uneven, stream_correction.features(work, expected)

    def untimed(self) -> Iterator[list[float]]:
        for problem in self._drawn():
            for config in stream_choice.likely_configs(problem):
                yield self._counted(problem, config)[1]

    def _drawn(self) -> Iterator[Problem]:
        order = random.Random(0)  # noqa: S311
        codes = str(Kind(NVFP4, canonical(NVFP4)))
        for number in range(self._PROBLEMS):
            problem = draw_problem(order)
            yield replace(problem, x=codes) if number % _CODED == 0 else problem
        for draw in (
            kernel_choice.draw_rows, kernel_choice.draw_mxfp4, kernel_choice.draw_experts,
        ):  # fmt: skip
            for asked in draw(0, self._BESIDE):
                yield asked.problem


class Gemm:
    SHAPE = Shape(hidden=(32, 16), near=0.05, level=0.3, steps=2500, lessons=8000)
    TABLE = gemm_correction.TABLE
    _PROBLEMS = 300  # of each kind

    def read(self, paths: Sequence[str]) -> list[Launched]:
        """Ragged groups are not corrected."""
        return [
            Launched(
                each.problem,
                time,
                *self._counted(each.problem, config),
                before=_is_old(path, each.problem.w_kind.format),
            )
            for path in paths
            for each in fit_gemm.read([path])
            for config, time in each.times.items()
            if not each.problem.ragged
        ]

    def _counted(self, problem: Problem, config: Any) -> tuple[float, list[float]]:
        predicted = gemm_cost.cost(problem, config).microseconds
        return predicted, gemm_correction.features(problem, config, predicted)

    def untimed(self) -> Iterator[list[float]]:
        for problem, transposed in self._drawn():
            times = {
                each: gemm_cost.cost(problem, each).microseconds
                for each in every_config(problem, transposed)
            }
            for config, time in times.items():
                if not problem.ragged and time < _NEAR * min(times.values()):
                    yield gemm_correction.features(problem, config, time)

    def _drawn(self) -> Iterator[tuple[Problem, bool]]:
        for kinds in (gemm_sweep.KINDS, gemm_sweep.CODEBOOKS, gemm_sweep.GRADIENTS):
            for problem in gemm_sweep.draw(0, self._PROBLEMS, kinds):
                transposed = problem.verb == "input_grad"
                yield as_product(problem) if transposed else problem, transposed
        for problem in gemm_sweep.draw_few_tiles(0, self._PROBLEMS):
            yield problem, False
        for draw in (kernel_choice.draw_rows, kernel_choice.draw_mxfp4):
            for asked in draw(0, self._PROBLEMS):
                yield asked.problem, False


KERNELS: dict[str, Kernel] = {"stream": Stream(), "gemm": Gemm()}


def _is_old(path: str, format: Format, *quicker: str) -> bool:
    """Whether a sweep is from before these elements became quicker, or MXFP4 did."""
    name = Path(path).name
    of_element = format.element.name in quicker and name in _MORE_INSTRUCTIONS
    return of_element or (format == MXFP4 and name in _BRANCHES)


def _on_few_routings(path: str, problem: Problem) -> bool:
    weights = (
        problem.weights_read * problem.n * problem.k * problem.w_kind.format.bits_per_value / 8
    )
    return problem.ragged and Path(path).name in _FEW_ROUTINGS and weights > _ROUTING_BYTES


def _timed(launches: Sequence[Launched]) -> list[Timed]:
    best: dict[Problem, float] = {}
    for each in launches:
        best[each.problem] = min(each.microseconds, best.get(each.problem, each.microseconds))
    return [
        Timed(
            each.facts,
            log(each.microseconds / each.predicted),
            each.problem,
            each.microseconds / best[each.problem],
            each.before,
        )
        for each in launches
    ]


def _told(launches: Sequence[Launched], factors: Sequence[float]) -> str:
    """Of each problem, how much slower the choice is than the best config measured."""
    chosen: dict[Problem, tuple[float, float]] = {}
    for each, timed, factor in zip(launches, _timed(launches), factors, strict=True):
        known = each.predicted * factor, timed.relative
        chosen[each.problem] = min(known, chosen.get(each.problem, known))
    return fit_stream.summary([relative for _, relative in chosen.values()])


def _factors(launches: Sequence[Launched], layers: list[Layer]) -> list[float]:
    return [exp(evaluate(layers, each.facts)) for each in launches]


def _averaged(launches: Sequence[Launched], teachers: Networks) -> list[float]:
    return [exp(each) for each in teachers.mean([each.facts for each in launches])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("fit", nargs="+")
    parser.add_argument("--judge", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    kernel = KERNELS[args.kernel]
    judges = {Path(path).name: kernel.read([path]) for path in args.judge}
    held_out = {each.problem for some in judges.values() for each in some}
    launches = [each for each in kernel.read(args.fit) if each.problem not in held_out]
    teachers, layers = fit(_timed(launches), kernel.untimed(), kernel.SHAPE, args.seed)
    for name, some in {"what is fitted": launches, **judges}.items():
        print(f"{name}, predicted: {_told(some, [1.0] * len(some))}")
        print(f"{name}, corrected by several: {_told(some, _averaged(some, teachers))}")
        print(f"{name}, corrected: {_told(some, _factors(some, layers))}")
    if args.write:
        write(kernel.TABLE, layers, launches[0].problem.device)


if __name__ == "__main__":
    main()
