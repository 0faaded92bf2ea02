"""Times every algorithm of the native CPU products on problems drawn at random, for the cost model.

    python -m bench.cpu_sweep sweep.jsonl --seed 1 --problems 60 [--threads 1,2] [--isas avx512]

A draw is fixed by its seed: n, k, m, format, verb and x of each problem. One draw fits the model
(bench.fit_cpu), another judges it. Algorithms take turns, round by round and in a new order each
round, and the best round of each is kept, so that other work on the machine hurts all alike and
little. The first algorithm runs twice in every round, as itself and as "again": what two times of
the same thing differ by is the noise of all the others. Weights come from memory, out of a ring of
copies; the results of all algorithms agree, or the problem is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.machine import commit, describe_machine
from bench.sweep import record_of
from blockscale.formats import INT8
from blockscale.formats import format as format_named
from blockscale.kernels.matmul.cpu import Config, algorithms, bind
from blockscale.kernels.repack.cpu import CPU_TILES
from blockscale.layouts import canonical
from blockscale.ops.agreement import disagreement
from blockscale.ops.quantize import run_dequantize
from blockscale.ops.tuning.agreement import tolerance
from blockscale.ops.tuning.operands import Operands, make_operands
from blockscale.problem import Kind, Problem
from blockscale.runtime import ceilings, device_of, load_native, native

FORMATS = {
    "nvfp4": 5, "kbit4": 4, "mxfp4": 2, "mxfp8": 2, "kbit2": 2, "kbit3": 2, "kbit5": 2,
    "mxfp6_e2m3": 2,
}  # fmt: skip
ROWS = {1: 3, 2: 2, 3: 1, 4: 2, 5: 1, 6: 1, 8: 2, 12: 2, 16: 2, 24: 2, 32: 2, 48: 1, 64: 1, 128: 1}
VERBS = {"plain": 10, "gated": 3, "experts": 4, "batch": 1, "int8": 3}
_LEAST_WEIGHTS, _MOST_WEIGHTS = 2**17, 2**22  # that are read
_MOST_PRODUCTS = 2**27  # of one call: a twentieth of a second of portable code
_RING_BYTES = 48 * 2**20
_ROUNDS, _SAMPLE_SECONDS = 9, 0.0005
_RATES = 6  # measurements of the machine, of which the best counts
AGAIN = "again"


def draw_problem(order: random.Random, verbs: dict[str, int]) -> Problem:
    """n and k from 256 to 8,192, evenly by their logarithm, and few enough weights that a call is
    short: what else the machine does then spares some calls."""
    while True:
        verb, m, groups = _pick(order, verbs), _pick(order, ROWS), 1
        format = format_named(_pick(order, FORMATS))
        n, k = (32 * round(2 ** order.uniform(3, 8)) for _ in range(2))
        n += order.choice((0, 0, 0, 8, 16))
        if verb in ("experts", "batch"):
            groups = order.choice((4, 8, 16))
            m = max(1, round(m * groups / 4)) if verb == "experts" else m
        if verb == "int8" and format.element.bits not in (2, 4):
            continue
        gated = verb == "gated" or (verb == "experts" and order.random() < 0.4)
        problem = Problem(
            verb="matmul",
            m=m,
            n=n,
            k=k,
            groups=groups,
            ragged=verb == "experts",
            gated=gated,
            activation="silu" if gated else "",
            x=str(Kind(INT8, canonical(INT8))) if verb == "int8" else "bfloat16",
            w=str(Kind(format, CPU_TILES)),
            out="bfloat16",
            device=device_of(torch.device("cpu")),
        )
        weights = problem.weights_read * n * k
        if _LEAST_WEIGHTS <= weights <= _MOST_WEIGHTS and problem.flops <= 2 * _MOST_PRODUCTS:
            return problem


def _pick(order: random.Random, weights: dict[Any, int]) -> Any:
    return order.choices(list(weights), list(weights.values()))[0]


Calls = list[Callable[[], None]]


def _calls(problem: Problem, isa: str, operands: Operands) -> tuple[dict[str, Calls], str | None]:
    """Of each algorithm, one for each copy of the weights; what is wrong with a result, if any."""
    allowed, biases = tolerance(problem, operands), (None,) * len(operands.matrices)
    expected, made = None, {}
    plain = run_dequantize(operands.x, torch.float32) if "@" in problem.x else operands.rows
    for algorithm in algorithms(problem, isa):
        config = Config(isa, algorithm, packs=False)
        x = plain if config.quantizes_x else operands.rows
        out = torch.full((problem.rows, problem.n), float("nan"), dtype=problem.out_dtype)
        made[algorithm] = [
            partial(bind(problem, config, each.weights), x, biases, each.group_sizes, out)
            for each in operands.ring
        ]
        made[algorithm][0]()
        expected = out.clone() if expected is None else expected
        wrong = disagreement(problem, out, expected, allowed)
        if wrong is not None:
            return {}, f"{algorithm}: {wrong}"
    first = next(iter(made))
    return {**made, AGAIN: made[first]}, None


class _Turns:
    """Calls of one algorithm, round the ring."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._next = calls, 0
        self._each = max(1, round(_SAMPLE_SECONDS / min(self._time(1) for _ in range(2))))

    def _time(self, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            self._calls[self._next]()
            self._next = (self._next + 1) % len(self._calls)
        return (time.perf_counter() - start) / count

    def sample(self) -> float:
        return self._time(self._each)


def measure(problem: Problem, isa: str, operands: Operands, order: random.Random) -> dict[str, Any]:
    """Seconds of each algorithm: the best round, and the rounds' median."""
    calls, wrong = _calls(problem, isa, operands)
    if wrong is not None:
        print(f"{problem}, {isa}: {wrong}", file=sys.stderr)
        return {}
    turns = {name: _Turns(each) for name, each in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(_ROUNDS):
        for name in order.sample(list(turns), len(turns)):
            samples[name].append(turns[name].sample())
    return {
        name: [float(f"{min(each):.4g}"), float(f"{sorted(each)[_ROUNDS // 2]:.4g}")]
        for name, each in samples.items()
    }


def _best_rates(threads: int) -> list[float]:
    torch.set_num_threads(threads)
    found = []
    for _ in range(_RATES):
        ceilings.cache_clear()
        found.append(ceilings(torch.device("cpu"), torch.float32)[:2])
    return [max(each) for each in zip(*found, strict=True)]


def header(seed: int, threads: list[int], given: str) -> dict[str, Any]:
    head, dirty = commit(given)
    rates = {str(each): _best_rates(each) for each in threads}
    return {
        "machine": describe_machine(torch.get_num_threads()),
        "rates": rates,  # by threads: bytes read and flops, a second
        "load": os.getloadavg()[0],
        "commit": head,
        "dirty": dirty,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }


def sweep(
    path: Path,
    seed: int,
    problems: int,
    verbs: dict[str, int],
    threads: list[int],
    isas: list[str],
    given: str,
) -> None:
    order = random.Random(seed)  # noqa: S311
    with torch.no_grad(), path.open("w") as out:
        out.write(json.dumps(header(seed, threads, given)) + "\n")
        for number in range(problems):
            problem, used = draw_problem(order, verbs), order.choice(threads)
            operands = make_operands(problem, torch.device("cpu"), _RING_BYTES)
            torch.set_num_threads(used)
            for isa in isas:
                seconds = measure(problem, isa, operands, order)
                record = [record_of(problem), isa, used, seconds]
                if seconds:
                    out.write(json.dumps(record, separators=(",", ":")) + "\n")
                    out.flush()
            if (number + 1) % 10 == 0:
                print(f"{number + 1} problems", flush=True)


def _legal_isas() -> list[str]:
    loaded = load_native()
    if isinstance(loaded, str):
        sys.exit(loaded)
    return list(native.isas_up_to(loaded.isa))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--verb", choices=VERBS, help="this one alone")
    parser.add_argument("--threads", default=f"1,{torch.get_num_threads()}")
    parser.add_argument("--isas", default="", help="default: all that this CPU has")
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    given = parser.parse_args()
    isas = given.isas.split(",") if given.isas else _legal_isas()
    threads = [int(each) for each in given.threads.split(",")]
    verbs = {given.verb: 1} if given.verb else VERBS
    sweep(given.out, given.seed, given.problems, verbs, threads, isas, given.commit)


if __name__ == "__main__":
    main()
