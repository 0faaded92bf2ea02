"""Times many configs of the streaming CUDA kernel on problems drawn at random, for the cost model.

    python -m bench.sweep draw --seed 5 --problems 90 plan.json       # anywhere
    python -m bench.sweep draw --seed 5 --ragged plan.json            # experts alone
    python -m bench.sweep compile plan.json                           # fills the cubin cache
    python -m bench.sweep again sweep.jsonl ... plan.json             # the problems of old sweeps
    python -m bench.sweep recorded h200.json plan.json --formats kbit5,mxfp8    # of bench.run
    python -m bench.sweep time plan.json sweep.jsonl                  # on a GPU

A draw is fixed by its seed: n, k, m, format and verb of each problem; of its configs, those that
the model ranks first, the first of each number of rows at a time, and some of the others. One draw
fits the model (bench.fit_stream, bench.fit_correction), another judges it. Compilation runs ahead
in this process; a child times, so that a config that faults costs one config and not the sweep.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from blockscale.formats import Format
from blockscale.formats import format as format_named
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import stream
from blockscale.kernels.matmul.stream.choice import ranked_by_prediction
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.cost import cost
from blockscale.kernels.matmul.stream.exceptions import exception, read_config
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.space import every_config, is_legal
from blockscale.kernels.matmul.stream.work import count
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device, gpu
from blockscale.runtime.cuda import cubin

FORMATS = {
    "nvfp4": 8, "kbit4": 6, "mxfp4": 3, "mxfp8": 2, "kbit2": 2, "kbit3": 2, "kbit5": 1,
    "mxfp6_e2m3": 1,
}  # fmt: skip
ROWS = {1: 6, 2: 2, 3: 1, 4: 3, 6: 1, 8: 3, 12: 1, 16: 4, 24: 1, 32: 3, 48: 1, 64: 3, 96: 1, 128: 2}
VERBS = {"plain": 12, "gated": 3, "experts": 8, "batch": 2}
EXPERTS, ROWS_OF_EXPERT, BATCHES = (16, 64, 128, 256, 512), (0.1, 0.25, 0.5, 1, 2, 4, 8), (4, 8, 16)
_LEAST_BYTES, _MOST_BYTES, _MOST_STORED = 0.4e6, 160e6, 2e9  # of weights that are read; in memory
_MOST_RAGGED = 8e8  # in memory, of a draw of experts alone
_MOST_EXPERT = 4096  # rows and columns of an expert
_LIKELY = 0.4  # of all configs, by predicted time, that others are taken from
_ROUNDS, _FIRST_ROUNDS = 9, 2
_SLOW = 1.5  # times the fastest: these are timed in the first rounds only
_MOST_RING = 64  # weights that calls go round
_JOBS = 14  # compilations at a time

Plan = list[tuple[Problem, list[Config]]]


def draw_problem(order: random.Random, formats: dict[str, int] = FORMATS) -> Problem:
    """n and k between 512 and 37,000, evenly by their logarithm, of both orientations."""
    while True:
        format = format_named(_pick(order, formats))
        verb, m, groups = _pick(order, VERBS), _pick(order, ROWS), 1
        n, k = (64 * round(2 ** order.uniform(3, 9.2)) for _ in range(2))
        if order.random() < 0.2:
            n += 16 * order.randrange(1, 4)
        if verb == "experts":
            groups = order.choice(EXPERTS)
            n, k = min(n, _MOST_EXPERT), min(k, _MOST_EXPERT)
            m = max(1, round(groups * order.choice(ROWS_OF_EXPERT)))
        elif verb == "batch":
            groups = order.choice(BATCHES)
        gated = verb == "gated" or (verb == "experts" and order.random() < 0.4)
        matrix = n * k * format.bits_per_value / 8 * (2 if gated else 1)
        read = matrix * (min(groups, m) if verb == "experts" else groups)
        if _LEAST_BYTES <= read <= _MOST_BYTES and groups * matrix < _MOST_STORED:
            break
    return _problem(format, m, n, k, groups=groups, ragged=verb == "experts", gated=gated)


def draw_ragged(order: random.Random, formats: dict[str, int] = FORMATS) -> Problem:
    """A layer of experts with a quarter of a row to eleven rows for each, evenly by the logarithm:
    any mean, since where it lies between two tiles of x is what configs differ by."""
    while True:
        format, groups = format_named(_pick(order, formats)), order.choice(EXPERTS)
        m = round(groups * 2 ** order.uniform(-2, 3.5))
        n, k = (64 * round(2 ** order.uniform(2.5, 6)) for _ in range(2))
        gated = order.random() < 0.5
        matrix = n * k * format.bits_per_value / 8 * (2 if gated else 1)
        read = min(groups, m) * matrix
        if read >= _LEAST_BYTES and groups * matrix < _MOST_RAGGED:
            return _problem(format, m, n, k, groups=groups, ragged=True, gated=gated)


def _problem(format: Format, m: int, n: int, k: int, **facts: Any) -> Problem:
    return Problem(
        verb="matmul",
        m=m,
        n=n,
        k=k,
        activation="silu" if facts.get("gated") else "",
        x="bfloat16",
        w=str(Kind(format, fragments(format))),
        out="bfloat16",
        device=gpu("sm_90"),
        **facts,
    )


def _pick(order: random.Random, weights: dict[Any, int]) -> Any:
    return order.choices(list(weights), list(weights.values()))[0]


def draw(
    seed: int,
    problems: int,
    best: int,
    others: int,
    formats: Iterable[str] = FORMATS,
    drawn: Callable[[random.Random, dict[str, int]], Problem] = draw_problem,
) -> Plan:
    order = random.Random(seed)  # noqa: S311
    plan = []
    for _ in range(problems):
        problem = drawn(order, {name: FORMATS[name] for name in formats})
        ranked = ranked_by_prediction(problem)
        of_tiles = {each.tile_m: each for each in reversed(ranked)}
        first = [*dict.fromkeys([*ranked[:best], *of_tiles.values()])]
        facts = facts_of(problem)
        times = {each: cost(count(each, facts)).microseconds for each in every_config(facts)}
        likely = sorted(times, key=times.__getitem__)[
            : max(best + others, round(_LIKELY * len(times)))
        ]
        rest = [each for each in likely if each not in first]
        plan.append((problem, [*first, *order.sample(rest, min(others, len(rest)))]))
    return plan


def again(sweeps: list[Path], best: int, earlier: int) -> Plan:
    """Problems of stored sweeps, to be timed with other kernels than they were: configs that are
    ranked first now, those that were the fastest then, and what an exception says."""
    timed: dict[Problem, dict[Config, float]] = {}
    for path in sweeps:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                facts, rows = json.loads(line)
                times = {read_config(row[0]): row[-1] for row in rows}
                timed.setdefault(problem_of(facts), {}).update(times)
            except (ValueError, TypeError, LookupError) as error:
                raise SystemExit(f"{path}, line {number}, is of no such sweep: {error}") from None
    plan = []
    for problem, times in timed.items():
        legal = [each for each in times if is_legal(each, facts_of(problem))]
        fastest = sorted(legal, key=times.__getitem__)
        plan.append((problem, [*dict.fromkeys([*_likely(problem, best), *fastest[:earlier]])]))
    return plan


def _likely(problem: Problem, best: int) -> list[Config]:
    """Configs that are ranked first, and what an exception says."""
    told = exception(problem)
    known = [] if told is None else [told.config]
    return [*dict.fromkeys([*ranked_by_prediction(problem)[:best], *known])]


def recorded(record: Path, formats: list[str], best: int) -> Plan:
    """Products of a record of bench.run that the streaming kernel takes."""
    try:
        cases = json.loads(record.read_text())["cases"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SystemExit(f"{record} is no record of bench.run: {error}") from None
    plan = []
    for case in cases:
        names = {entry["rival"].lower() for entry in case["entries"] if entry["role"] == "ours"}
        for name in (each for each in formats if each in names):
            problem = _problem(format_named(name), case["m"], case["n"], case["k"])
            if stream.refuses(problem) is None:
                plan.append((problem, _likely(problem, best)))
    return plan


def record_of(problem: Problem) -> dict[str, Any]:
    """As files hold them: a device by its architecture, whose GPU the file's name tells."""
    facts = {each.name: getattr(problem, each.name) for each in fields(problem)}
    del facts["device"]
    return facts | {"target": problem.target}


def problem_of(facts: dict[str, Any]) -> Problem:
    rest, target = dict(facts), facts["target"]
    del rest["target"]
    device = Device(name="cpu", arch="cpu") if target == "cpu" else gpu(target)
    return Problem(**rest, device=device)


def write_plan(plan: Plan, path: Path) -> None:
    listed = [
        (record_of(problem), [numbers_of(each) for each in configs]) for problem, configs in plan
    ]
    path.write_text(json.dumps(listed))


def read_plan(path: Path) -> Plan:
    return [
        (problem_of(facts), [read_config(each) for each in listed])
        for facts, listed in json.loads(path.read_text())
    ]


class Child:
    """The process that times; made anew after one that died."""

    def __init__(self, plan: Path, out: Path) -> None:
        command = [sys.executable, "-m", "bench.sweep", "serve", str(plan), str(out)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, number: int, skipped: list[int]) -> int | None:
        """Of one problem; the config in which the child died, or None where all went well."""
        process, trying = self._process, 0
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the child has no pipes")
        process.stdin.write(f"{number} {json.dumps(skipped)}\n")
        process.stdin.flush()
        for line in process.stdout:
            if line == "done\n":
                return None
            trying = int(line)
        process.wait()
        return trying

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def _compiled(plan: Plan, pool: ThreadPoolExecutor) -> dict[Any, Future[bytes]]:
    """Or being compiled, each build once."""
    jobs: dict[Any, Future[bytes]] = {}
    for problem, configs in plan:
        for config in configs:
            build = stream.bind(problem, config).builds[0]
            if build not in jobs:
                jobs[build] = pool.submit(cubin, build, problem.target)
    return jobs


def time_plan(path: Path, out: Path) -> None:
    plan = read_plan(path)
    out.write_text("")
    with ThreadPoolExecutor(_JOBS) as pool:
        jobs = _compiled(plan, pool)
        print(f"{len(plan)} problems, {sum(len(c) for _, c in plan)} times, {len(jobs)} builds")
        child = Child(path, out)
        for number, (problem, configs) in enumerate(plan):
            for config in configs:
                jobs[
                    stream.bind(problem, config).builds[0]
                ].exception()  # the child says what is wrong
            skipped: list[int] = []
            while (died := child.measure(number, skipped)) is not None:
                print(f"{problem}: the process died with {configs[died]}")
                skipped.append(died)
                child = Child(path, out)
            if (number + 1) % 10 == 0:
                print(f"{number + 1} problems", flush=True)
        child.stop()


def serve(plan_path: Path, out_path: Path) -> None:
    import torch

    plan, device = read_plan(plan_path), torch.device("cuda", 0)
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()), out_path.open("a") as out:
        for line in sys.stdin:
            number, _, skipped = line.partition(" ")
            record = _measure(*plan[int(number)], device, json.loads(skipped))
            out.write(json.dumps(record, separators=(",", ":")) + "\n")
            out.flush()
            print("done", flush=True)
            torch.cuda.empty_cache()


def _measure(problem: Problem, configs: list[Config], device: Any, skipped: list[int]) -> Any:
    """[problem, [[config, CTAs that an SM holds, spilled bytes, microseconds], ...]], of those
    whose results agree."""
    import torch

    from blockscale.kernels.matmul.stream.product import Product
    from blockscale.ops.agreement import disagreement
    from blockscale.ops.tuning.agreement import tolerance
    from blockscale.ops.tuning.operands import make_operands
    from blockscale.runtime.cuda import GraphStopwatch
    from blockscale.runtime.timing import ring_bytes

    operands = make_operands(problem, device, ring_bytes(device))
    allowed, biases = tolerance(problem, operands), (None,) * len(operands.matrices)
    x, ring = operands.rows, operands.ring[:_MOST_RING]
    shape, dtype = (problem.rows, problem.n), problem.out_dtype
    watches, held, expected = {}, {}, None
    for number, config in enumerate(configs):
        print(number, flush=True)
        if number in skipped:
            continue
        out = torch.full(shape, float("nan"), dtype=dtype, device=device)
        try:
            launches = [Product(problem, config, entry.weights, frozen=True) for entry in ring]
            launches[0](x, biases, ring[0].group_sizes, out)
            torch.cuda.current_stream().synchronize()
            held[number] = launches[0].held, launches[0].spilled
            expected = out.clone() if expected is None else expected
            wrong = disagreement(problem, out, expected, allowed)
            if wrong is None:
                calls = [
                    partial(launch, x, biases, entry.group_sizes, out)
                    for launch, entry in zip(launches, ring, strict=True)
                ]
                watches[number] = GraphStopwatch(calls)
        except RuntimeError as error:
            wrong = f"{type(error).__name__}: {error}".partition("\n")[0]
        if wrong is not None:
            print(f"{problem}, {config}: {wrong}", file=sys.stderr)
    rows = [
        [numbers_of(configs[number]), *held[number], round(1e6 * median(samples), 3)]
        for number, samples in _samples(watches).items()
    ]
    return [record_of(problem), rows]


def numbers_of(config: Config) -> list[int]:
    return [int(value) for value in asdict(config).values()]


def _samples(watches: dict[int, Any]) -> dict[int, list[float]]:
    """In turns, so that whatever the machine does meanwhile, it does to all."""
    samples: dict[int, list[float]] = {number: [] for number in watches}
    for turn in range(_ROUNDS):
        fastest = min((min(taken) for taken in samples.values() if taken), default=0)
        for number, watch in watches.items():
            if turn < _FIRST_ROUNDS or min(samples[number]) < _SLOW * fastest:
                samples[number].append(watch.sample())
    return samples


def _formats(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in FORMATS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {','.join(FORMATS)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="problems and configs, into a file")
    drawing.add_argument("plan", type=Path)
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--problems", type=int, default=90)
    drawing.add_argument("--best", type=int, default=16, help="configs that the model ranks first")
    drawing.add_argument("--others", type=int, default=8, help="of the rest, at random")
    drawing.add_argument("--ragged", action="store_true", help="layers of experts alone")
    drawing.add_argument("--formats", type=_formats, default=[*FORMATS], help="with commas")
    repeating = commands.add_parser("again", help="problems of stored sweeps, into a file")
    repeating.add_argument("sweeps", type=Path, nargs="+")
    repeating.add_argument("plan", type=Path)
    repeating.add_argument("--best", type=int, default=4, help="configs that the model ranks first")
    repeating.add_argument("--earlier", type=int, default=2, help="that were the fastest")
    of_record = commands.add_parser("recorded", help="products of a record, into a file")
    of_record.add_argument("record", type=Path)
    of_record.add_argument("plan", type=Path)
    of_record.add_argument("--formats", type=_formats, default=[*FORMATS], help="with commas")
    of_record.add_argument("--best", type=int, default=12, help="configs that are ranked first")
    compiling = commands.add_parser("compile", help="what a plan needs")
    compiling.add_argument("plan", type=Path)
    for name in ("time", "serve"):
        timing = commands.add_parser(name)
        timing.add_argument("plan", type=Path)
        timing.add_argument("out", type=Path)
    args = parser.parse_args()
    if args.command == "draw":
        drawn = draw_ragged if args.ragged else draw_problem
        plan = draw(args.seed, args.problems, args.best, args.others, args.formats, drawn)
        write_plan(plan, args.plan)
    elif args.command == "again":
        write_plan(again(args.sweeps, args.best, args.earlier), args.plan)
    elif args.command == "recorded":
        write_plan(recorded(args.record, args.formats, args.best), args.plan)
    elif args.command == "compile":
        with ThreadPoolExecutor(_JOBS) as pool:
            print(f"{len(_compiled(read_plan(args.plan), pool))} builds")
    else:
        (time_plan if args.command == "time" else serve)(args.plan, args.out)


if __name__ == "__main__":
    main()
