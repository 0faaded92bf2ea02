"""Measure the other verbs on a GPU: python -m bench.verbs

Layers of experts, batches, quantising, and what a call costs the host. Every result is checked
before it is timed. Printed as it goes, stored in bench/results/verbs after each line.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType

import torch
from rich.console import Console

from bench import batched_gemv, experts, gpu_quantize, host_cost, quantized_products
from bench.cuda_timing import CudaClock
from bench.duel import told
from bench.machine import commit, describe_gpu, describe_machine, versions
from bench.measurements import FOLDER, Measurement, Report
from bench.results import TIMED
from bench.rivals.blockscale_cuda import compilations_of
from blockscale.runtime import Device, device_of

WORKS = {
    "host": host_cost,
    "gemv": batched_gemv,
    "products": quantized_products,
    "experts": experts,
    "quantize": gpu_quantize,
}
_SECONDS = 0.2  # to time a line for


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    if not torch.cuda.is_available():
        console.print(f"torch {torch.__version__} sees no CUDA device")
        return 1
    begin = time.perf_counter()
    clock = CudaClock()
    report = _begin(arguments)
    path = arguments.out or FOLDER / _file_name(report)
    works = [WORKS[name] for name in arguments.works]
    _compile(works, device_of(clock.device))
    console.print(f"{report.machine['gpu']}; compiled after {time.perf_counter() - begin:.0f} s")
    with torch.no_grad():
        for work in works:
            _measure(work, report, clock, console, path)
    console.print(f"stored: {path}")
    return 0


def _measure(
    work: ModuleType, report: Report, clock: CudaClock, console: Console, path: Path
) -> None:
    """One kind of work that breaks does not take the others with it."""
    console.print(work.WORK)
    try:
        for line in work.measure(clock, _SECONDS):
            report.measurements.append(line)
            report.store(path)
            console.print(f"  {shown(line)}", markup=False)
    except Exception as error:  # noqa: BLE001 reported by name
        console.print(f"  failed: {told(error)}", markup=False)
    torch.cuda.empty_cache()


def shown(line: Measurement) -> str:
    """One measurement in one line."""
    who = f"{line.problem}: {line.name}"
    if line.outcome != TIMED or line.time is None:
        return f"{who} {line.outcome}, {line.reason}"
    parts = [f"{who} {line.time.median:.1f} us +-{line.time.percent:.0f}%"]
    if line.other and line.ratio:
        parts.append(f"{line.ratio.median:.2f} x {line.beside} ({line.other.median:.1f} us)")
    if line.floor and line.beside != "read":
        parts.append(f"read {line.floor.median:.1f} us")
    return ", ".join(parts)


def _compile(works: Sequence[ModuleType], device: Device) -> None:
    """What fails here fails again where it is used, and is reported there."""
    problems = [problem for work in works for problem in work.problems(device)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for future in [pool.submit(job) for job in compilations_of(problems)]:
            with suppress(Exception):
                future.result()


def _begin(arguments: argparse.Namespace) -> Report:
    head, dirty = commit(arguments.commit)
    return Report(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=head,
        dirty=dirty,
        machine={**describe_machine(torch.get_num_threads()), **describe_gpu()},
        versions=versions(("torch",)),
    )


def _file_name(report: Report) -> str:
    gpu = re.sub(r"[^a-z0-9]+", "-", str(report.machine["gpu"]).lower()).strip("-")
    return f"{re.sub(r'[-:]', '', report.date[:19])}-{gpu}.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.verbs",
        usage="%(prog)s [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--works",
        type=_works,
        default=tuple(WORKS),
        help=f"with commas. default: {','.join(WORKS)}",
    )
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--out", type=Path, help="default: a file in bench/results/verbs")
    return parser


def _works(text: str) -> tuple[str, ...]:
    for name in text.split(","):
        if name not in WORKS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {','.join(WORKS)}")
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main())
