"""Times both Hopper kernels for many rows where either may be the faster: the choice between them.

    python -m bench.kernel_choice rows --seed 1 sweep.jsonl      # on a Hopper GPU
    python -m bench.kernel_choice mxfp4 --seed 1 sweep.jsonl
    python -m bench.kernel_choice others --seed 1 sweep.jsonl
    python -m bench.kernel_choice groups --seed 1 sweep.jsonl
    python -m bench.kernel_choice experts --seed 1 sweep.jsonl
    python -m bench.kernel_choice recorded sweep.jsonl           # of bench/results/h200.json
    python -m bench.kernel_choice rows --seed 1 --compile        # anywhere: fills the cubin cache

A draw is fixed by its seed. `rows` are plain and gated products of 34 to 180 rows, `mxfp4` the same
in that format, `others` in those that `rows` has not. `groups` are of unequal sizes, which no
choice knows: the four groupings of the NVFP4 contest, then groups whose shares of the rows spread
by a quarter, a half or four fifths of their mean; what the models assume of sizes,
kernels/matmul/fragments/groups.py says. `experts` are many groups of 6 to 90 rows, gated and not,
of which three in four have rows that fall on them at random. `recorded` are the products of a
record of bench.run that both kernels take. Of each problem those configs of the Hopper GEMM are
timed that are predicted to be fast, with and without the sizes or the correction, and the first
three of the stream kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from bench.cuda_timing import CudaClock, CudaStopwatch
from bench.gemm_sweep import DENSE, OTHERS, described, problem
from bench.problems import PRODUCTS
from bench.random_weights import random_weight
from bench.results import FOLDER
from blockscale.formats import parse_spec
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import sm90_gemm, stream
from blockscale.kernels.matmul.sm90_gemm.choice import predicted as predicted_tiled
from blockscale.kernels.matmul.sm90_gemm.config import Config as GemmConfig
from blockscale.kernels.matmul.sm90_gemm.cost import cost, cost_of_tiles
from blockscale.kernels.matmul.stream.choice import predicted as predicted_streamed
from blockscale.kernels.matmul.stream.config import Config as StreamConfig
from blockscale.ops.operand import as_groups
from blockscale.problem import Problem
from blockscale.runtime.cuda import cubin

_SKEWS = (0.25, 0.5, 0.8)
_LEAST_FLOPS, _MOST_FLOPS = 4e9, 3e11
_MOST_WEIGHTS = 2**30
_LEAST_READ, _MOST_READ = 3e6, 150e6
_RING_BYTES = 150e6  # of weights that calls go round: three times the L2 cache
_MOST_COPIES = 32
_ROUNDS = 4


class Asked(NamedTuple):
    problem: Problem
    sizes: tuple[int, ...] = ()  # of ragged groups


def draw_rows(
    seed: int, count: int, kinds: dict[tuple[str, str], int] | None = None
) -> list[Asked]:
    order = random.Random(seed)  # noqa: S311
    return [*islice(_drawn_rows(order, kinds or DENSE), count)]


def draw_mxfp4(seed: int, count: int) -> list[Asked]:
    return draw_rows(seed, count, {("mxfp4", "plain"): 3, ("mxfp4", "gated"): 1})


def draw_others(seed: int, count: int) -> list[Asked]:
    return draw_rows(seed, count, OTHERS)


def _drawn_rows(order: random.Random, kinds: dict[tuple[str, str], int]) -> Iterator[Asked]:
    while True:
        name, verb = order.choices(list(kinds), list(kinds.values()))[0]
        n, k = (64 * round(2 ** order.uniform(4, 9)) for _ in range(2))
        m = round(2 ** order.uniform(5.1, 7.5))
        asked = problem(name, verb, m, n, k, 1)
        if _LEAST_READ < asked.bytes < _MOST_READ:
            yield Asked(asked)


def draw_groups(seed: int, count: int) -> list[Asked]:
    order = random.Random(seed)  # noqa: S311
    found = [
        Asked(problem("nvfp4", "experts", each.m, each.n, each.k, len(each.groups)), each.groups)
        for each in PRODUCTS
        if each.groups
    ]
    return [*found, *islice(_drawn_groups(order), count - len(found))]


def _drawn_groups(order: random.Random) -> Iterator[Asked]:
    while True:
        groups = order.choice((4, 8, 16, 32, 64))
        n, k = (64 * round(2 ** order.uniform(4, 7)) for _ in range(2))
        m, skew = round(groups * 2 ** order.uniform(4.6, 8.4)), order.choice(_SKEWS)
        shares = [order.gammavariate(1 / skew**2, skew**2) for _ in range(groups)]
        owners = order.choices(range(groups), shares, k=m)
        format = order.choice(("nvfp4", "nvfp4", "kbit4"))
        asked = problem(format, "experts", m, n, k, groups)
        if _LEAST_FLOPS < asked.flops < _MOST_FLOPS and groups * n * k < _MOST_WEIGHTS:
            yield Asked(asked, tuple(owners.count(each) for each in range(groups)))


def draw_experts(seed: int, count: int) -> list[Asked]:
    order = random.Random(seed)  # noqa: S311
    return [*islice(_drawn_experts(order), count)]


def _drawn_experts(order: random.Random) -> Iterator[Asked]:
    while True:
        groups, verb = order.choice((32, 64, 128, 256)), order.choice(("experts", "gated experts"))
        n, k = (64 * round(2 ** order.uniform(3, 6.8)) for _ in range(2))
        m, skew = round(groups * 2 ** order.uniform(2.6, 6.5)), order.choice((0, 0, 0, 0.5))
        shares = [order.gammavariate(1 / skew**2, skew**2) if skew else 1 for _ in range(groups)]
        owners = order.choices(range(groups), shares, k=m)
        asked = problem(order.choice(("nvfp4", "kbit4")), verb, m, n, k, groups)
        if (
            asked.flops > _LEAST_FLOPS
            and (2 if asked.gated else 1) * groups * n * k < _MOST_WEIGHTS
        ):
            yield Asked(asked, tuple(owners.count(each) for each in range(groups)))


def recorded(record: Path) -> list[Asked]:
    found = []
    for case in json.loads(record.read_text())["cases"]:
        for entry in case["entries"]:
            if entry["role"] == "ours":
                name = entry["rival"].lower()
                made = problem(name, "plain", case["m"], case["n"], case["k"], 1)
                if sm90_gemm.refuses(made) is None:
                    found.append(Asked(made))
    return found


def candidates(asked: Asked) -> dict[Any, list[Any]]:
    """Configs of each kernel."""

    def known(config: GemmConfig) -> float:
        if not asked.sizes:
            return cost(asked.problem, config).microseconds
        tiles = sum(ceil(size / config.tile_m) for size in asked.sizes)
        of_all = tiles * config.n_tiles(asked.problem)
        return cost_of_tiles(asked.problem, config, of_all).microseconds

    ranked = sm90_gemm.configs(asked.problem)
    tiled = dict.fromkeys([*ranked[:4], *sorted(ranked, key=known)[:5]])
    return {sm90_gemm: list(tiled), stream: list(stream.configs(asked.problem)[:3])}


def compile_ahead(every: Iterable[Asked]) -> None:
    builds = {
        build
        for each in every
        for kernel, configs in candidates(each).items()
        for config in configs
        for build in kernel.bind(each.problem, config).builds[:1]
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda build: cubin(build, "sm_90"), builds))


def time_all(asked: Asked, device: torch.device) -> dict[str, Any]:
    """Microseconds of every candidate, in turns."""
    problem, format = asked.problem, asked.problem.w_kind.format
    place = fragments(format)
    if place is None:
        raise ValueError(f"no kernel for GPUs reads {format}")
    x = torch.randn(problem.m, problem.k, device=device).bfloat16()
    out = torch.empty(problem.m, problem.n, device=device, dtype=torch.bfloat16)
    sizes = torch.tensor(asked.sizes, device=device) if asked.sizes else None
    w = random_weight(format, (problem.groups, problem.n, problem.k), place, device, 0)
    branches = 2 if problem.gated else 1
    copies = max(1, min(_MOST_COPIES, ceil(_RING_BYTES / (branches * w.nbytes))))
    ring = [
        [replace(w, codes=w.codes.clone(), scale=w.scale.clone()).freeze() for _ in range(branches)]
        for _ in range(copies)
    ]
    watches = {}
    for kernel, configs in candidates(asked).items():
        for config in configs:
            launches = [
                kernel.bind(problem, config, tuple(as_groups(q.operand) for q in each), frozen=True)
                for each in ring
            ]
            watches[kernel, config] = CudaStopwatch(
                [lambda run=run: run(x, (None,) * branches, sizes, out) for run in launches]
            )
    taken: dict[Any, list[float]] = {each: [] for each in watches}
    for _ in range(_ROUNDS):
        for each, watch in watches.items():
            taken[each].append(watch.sample() * 1e6)

    def times(of: Any) -> list[list[Any]]:
        return [
            [*asdict(config).values(), round(median(samples), 3)]
            for (kernel, config), samples in taken.items()
            if kernel is of
        ]

    return {
        "problem": described(problem),
        "sizes": asked.sizes,
        "configs": times(sm90_gemm),
        "stream": times(stream),
    }


class Timed(NamedTuple):
    asked: Asked
    tiled: dict[GemmConfig, float]  # microseconds
    streamed: dict[StreamConfig, float]


def read(path: Path) -> list[Timed]:
    found = []
    for line in path.read_text().splitlines():
        facts = json.loads(line)
        asked = dict(facts["problem"])
        made = problem(parse_spec(asked.pop("format")).name, **asked)
        tiled = {GemmConfig(*numbers): time for *numbers, time in facts["configs"]}
        streamed = {StreamConfig(*numbers): time for *numbers, time in facts["stream"]}
        found.append(Timed(Asked(made, tuple(facts["sizes"])), tiled, streamed))
    return found


def regret(timed: Timed) -> float:
    """The time of the kernel and config that are predicted to be the fastest, over the best one's.
    Sizes of groups are told to the device alone."""
    asked = timed.asked.problem
    by_prediction = [
        *((predicted_tiled(asked, each).microseconds, t) for each, t in timed.tiled.items()),
        *((predicted_streamed(asked, each).microseconds, t) for each, t in timed.streamed.items()),
    ]
    _, chosen = min(by_prediction)
    return chosen / min(time for _, time in by_prediction)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    draws = {
        "rows": draw_rows,
        "mxfp4": draw_mxfp4,
        "others": draw_others,
        "groups": draw_groups,
        "experts": draw_experts,
    }
    parser.add_argument("what", choices=[*draws, "recorded"])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--record", type=Path, default=FOLDER / "h200.json", help="of bench.run")
    parser.add_argument("--compile", action="store_true", help="compile, and time nothing")
    asked = parser.parse_intermixed_args()
    if asked.what == "recorded":
        every = recorded(asked.record)
    else:
        every = draws[asked.what](asked.seed, asked.problems)
    compile_ahead(every)
    if asked.compile:
        return
    clock = CudaClock()
    with asked.out.open("a") as file, torch.no_grad():
        for each in every:
            file.write(json.dumps(time_all(each, clock.device)) + "\n")
            file.flush()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
