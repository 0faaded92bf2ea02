"""Finds problems whose best config is not the one that is predicted to be the fastest.

    python -m bench.exceptions h200 --sweeps SWEEP.jsonl ... --kernels SWEEP.jsonl ...

`--sweeps` are of bench.sweep, of the stream kernel alone; `--kernels` of bench.kernel_choice, of
products that the Hopper GEMM takes too. kernels/matmul/stream/exceptions.json is written anew,
for the GPU that the sweeps are of.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from bench import fit_stream, kernel_choice
from bench.sweep import numbers_of
from blockscale.kernels.matmul.sm90_gemm.choice import predicted as predicted_tiled
from blockscale.kernels.matmul.stream.choice import modelled, ranked_by_prediction
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.exceptions import TABLE, exception_key
from blockscale.problem import Problem
from blockscale.runtime import Device, gpu

# Times the best: what is slower becomes an exception. No figure of a record may become 2% worse,
# and its clock and the sweeps' differ by half a per cent and more.
_TOLD = 1.015


class Found(NamedTuple):
    problem: Problem
    config: Config
    microseconds: float
    of_predicted: float | None


def of_configs(timings: Iterable[fit_stream.Timing]) -> list[Found]:
    """Times are means where sweeps repeat each other. A predicted config that was not timed counts
    as the slowest, and has no time."""
    found = []
    timed: dict[Problem, dict[Config, list[float]]] = {}
    for each in timings:
        timed.setdefault(each.problem, {}).setdefault(each.config, []).append(each.microseconds)
    for problem, times in timed.items():
        own = {config: round(mean(each), 3) for config, each in times.items()}
        best = min(own, key=own.__getitem__)
        took = own.get(ranked_by_prediction(problem)[0])
        if took is None or took > _TOLD * own[best]:
            found.append(Found(problem, best, own[best], took))
    return found


def of_kernels(judged: Iterable[kernel_choice.Timed]) -> list[Found]:
    """Where the Hopper GEMM is predicted to be the faster, and the stream kernel was."""
    found = []
    for (problem, _), tiled, streamed in judged:
        if not streamed:
            continue
        expected = min(modelled(problem, each).microseconds for each in streamed)
        told = {each: predicted_tiled(problem, each).microseconds for each in tiled}
        chosen = min(told, key=told.__getitem__)
        best = min(streamed, key=streamed.__getitem__)
        beaten = tiled[chosen] > _TOLD * streamed[best]
        if beaten and told[chosen] < expected and streamed[best] < min(tiled.values()):
            found.append(Found(problem, best, streamed[best], tiled[chosen]))
    return found


def exceptions(sweeps: Iterable[Path], kernels: Iterable[Path]) -> list[Found]:
    """A problem of both is what the sweeps of one kernel say, which time more configs of it."""
    of_both = [found for path in kernels for found in of_kernels(kernel_choice.read(path))]
    found = of_both + of_configs(fit_stream.read(sweeps, spare=True))
    return [*{exception_key(each.problem): each for each in found}.values()]


def write(found: Sequence[Found], measured: Device) -> None:
    rows = ",\n".join("    " + json.dumps(_row(each), separators=(",", ":")) for each in found)
    name = json.dumps(measured.name)
    head = f'{{"device": {name}, "target": "{measured.arch}", "sms": {measured.sms},'
    TABLE.write_text(f'{head}\n "problems": [\n{rows}\n]}}\n')


def _row(found: Found) -> list[Any]:
    problem, config, *times = found
    return [*exception_key(problem), numbers_of(config), *times]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("device", help="whose times the sweeps are")
    parser.add_argument("--sweeps", type=Path, nargs="+", required=True)
    parser.add_argument("--kernels", type=Path, nargs="*", default=[])
    asked = parser.parse_args()
    found = exceptions(asked.sweeps, asked.kernels)
    write(found, gpu(asked.device))
    print(f"{len(found)} exceptions in {TABLE}")


if __name__ == "__main__":
    main()
