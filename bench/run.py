"""Measure the products on this machine: python -m bench.run --device cpu (or cuda)

Every result is checked before anything is timed. The run is printed as it goes, and stored in
bench/results after each shape; `python docs/generate.py` makes the tables of the documentation
from what is stored.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch
from rich.console import Console

from bench.clocks import CLOCKS
from bench.compile import compile_all
from bench.contest import contest, lacks_memory
from bench.conversions import convert
from bench.machine import commit, describe_gpu, describe_machine, versions
from bench.problems import (
    CUDA_QUICK_ROWS,
    CUDA_QUICK_SHAPES,
    CUDA_ROWS,
    CUDA_SHAPES,
    QUICK_ROWS,
    ROWS,
    quick_shapes,
    shapes,
)
from bench.results import FOLDER, Run
from bench.rivals import FORMATS, OTHERS, Rival, cuda_field, field
from bench.show import show_case, show_conversions, show_start, show_summary
from bench.timing import Clock
from blockscale.formats import CATALOGUE, Format
from blockscale.runtime import load_native

_PACKAGES = {
    "cpu": ("torch", "bitsandbytes", "onnxruntime", "onnx"),
    "cuda": ("torch", "bitsandbytes", "humming-kernels"),
}
_SECONDS = {"cpu": 5.0, "cuda": 0.3}  # to time a case for
_COMPILE_SECONDS = 60.0  # who needs longer is left out
_CONVERSION_SHAPE = (4096, 4096)
_FILE_WIDTH = 200  # of the tables where there is no terminal to ask
_START = time.perf_counter()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    torch.set_num_threads(arguments.threads)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        console.print(f"torch {torch.__version__} sees no CUDA device")
        return 1
    clock = CLOCKS[arguments.device]()
    rivals = _rivals(arguments)
    missing = {rival.name: reason for rival in rivals if (reason := rival.missing())}
    rivals = [rival for rival in rivals if rival.name not in missing]
    run = _begin(arguments, missing)
    show_start(console, run)
    late = compile_all(rivals, arguments.shapes, arguments.rows, arguments.compile_seconds)
    missing.update(late)
    console.print(
        f"compiled after {time.perf_counter() - _START:.0f} s; too late: {late or 'none'}"
    )
    path = None if arguments.no_store else arguments.out or FOLDER / _file_name(run)
    with torch.no_grad():
        present = [rival for rival in rivals if rival.name not in missing]
        _measure(run, present, arguments, clock, console, path)
    if arguments.device == "cuda":
        show_summary(console, run)
    if path:
        console.print(f"stored: {path}")
    return 0


def _rivals(arguments: argparse.Namespace) -> list[Rival]:
    if arguments.device == "cuda":
        return cuda_field(arguments.formats, arguments.rows, arguments.rivals)
    return field(arguments.formats, arguments.threads, getattr(torch, arguments.dtype))


def _measure(
    run: Run,
    rivals: Sequence[Rival],
    arguments: argparse.Namespace,
    clock: Clock,
    console: Console,
    path: Path | None,
) -> None:
    """What is done is stored at once, so that an interruption loses one case."""
    for n, k in arguments.shapes:
        if reason := lacks_memory(n, k, clock.free_memory()):
            run.skipped[f"{n}x{k}"] = reason
            console.print(f"skipped: {n} x {k} ({reason})")
            continue
        dtype = getattr(torch, arguments.dtype)
        for case in contest(n, k, arguments.rows, rivals, clock, arguments.seconds, dtype):
            run.cases.append(case)
            show_case(console, case, run.baseline)
            if path:
                run.store(path)
    if arguments.conversions:
        run.conversions.extend(convert(*arguments.conversions, clock, arguments.seconds))
        show_conversions(console, run.conversions)
    if path:
        run.store(path)


def _begin(arguments: argparse.Namespace, missing: dict[str, str]) -> Run:
    head, dirty = commit(arguments.commit)
    return Run(
        device=arguments.device,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=head,
        dirty=dirty,
        machine=_machine(arguments),
        versions=versions(_PACKAGES[arguments.device]),
        settings={
            "seconds": arguments.seconds,
            "formats": [format.name for format in arguments.formats],
            "native": _native_library(),
            "baseline": f"torch {arguments.dtype}",
        },
        missing=missing,
    )


def _machine(arguments: argparse.Namespace) -> dict[str, object]:
    gpu = describe_gpu() if arguments.device == "cuda" else {}
    return {**describe_machine(arguments.threads), **gpu}


def _native_library() -> str:
    """The instruction set that our kernels use, or why everything runs on the reference."""
    loaded = load_native()
    return f"none ({loaded})" if isinstance(loaded, str) else loaded.isa


def _file_name(run: Run) -> str:
    name = run.machine.get("gpu") or f"{run.machine['cpu']}-{run.machine['threads']}-threads"
    plain = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(\w+\)", "", name).lower()).strip("-")
    when = re.sub(r"[-:]", "", run.date[:19])
    return f"{when}-{plain}.json"


# --- arguments -----------------------------------------------------------------------------------


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What is named, such as `quick`, depends on the device."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    on_gpu = arguments.device == "cuda"
    try:
        arguments.shapes = _shapes(arguments.shapes, on_gpu)
        arguments.rows = _rows(arguments.rows, on_gpu)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if arguments.seconds is None:
        arguments.seconds = _SECONDS[arguments.device]
    if arguments.conversions is None:
        arguments.conversions = () if on_gpu else _CONVERSION_SHAPE
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.run",
        usage="%(prog)s [options]",  # in full it would bury an error message
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=sorted(CLOCKS), default="cpu", help="default: cpu")
    parser.add_argument(
        "--threads", type=_positive, default=torch.get_num_threads(), help="default: %(default)s"
    )
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=("bfloat16", "float32"),
        help="of x, and of torch's product that all are compared with: float32 for a CPU that has "
        "no instructions for bfloat16. default: %(default)s",
    )
    parser.add_argument(
        "--shapes",
        default="quick",
        help="weights [N, K]: quick, all, or NxK; several with commas. default: quick",
    )
    parser.add_argument(
        "--rows",
        default="quick",
        help=f"rows of x: quick ({_list(QUICK_ROWS)}; cuda {_list(CUDA_QUICK_ROWS)}), all "
        f"({_list(ROWS)}; cuda {_list(CUDA_ROWS)}), or numbers with commas. default: quick",
    )
    parser.add_argument(
        "--formats",
        type=_formats,
        default=FORMATS,
        help=f"of ours, with commas. default: {_list(f.name for f in FORMATS)}",
    )
    parser.add_argument(
        "--seconds", type=_seconds, help=f"to time a case for. default: {_each(_SECONDS)}"
    )
    parser.add_argument(
        "--rivals",
        type=_others,
        default=OTHERS,
        help=f"of a GPU, besides torch: with commas, or none. default: {_list(OTHERS)}",
    )
    parser.add_argument(
        "--compile-seconds",
        type=_seconds,
        default=_COMPILE_SECONDS,
        help="whose kernels take longer to compile is left out. default: %(default)s",
    )
    parser.add_argument(
        "--conversions",
        type=_conversions,
        metavar="NxK",
        help="matrix that is quantised and dequantised, or none. default: "
        f"{'x'.join(map(str, _CONVERSION_SHAPE))} on a CPU, none on a GPU",
    )
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    storing = parser.add_mutually_exclusive_group()
    storing.add_argument("--out", type=Path, help="file to store. default: one in bench/results")
    storing.add_argument("--no-store", action="store_true", help="print only")
    return parser


def _list(values: object) -> str:
    return ",".join(map(str, values))


def _each(values: dict[str, float]) -> str:
    return ", ".join(f"{value:g} ({name})" for name, value in values.items())


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def _shape(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not quick, all, or NxK such as 4096x4096")
    n, k = int(match[1]), int(match[2])
    if k % 64:
        raise argparse.ArgumentTypeError(f"{text!r}: K must be a multiple of 64, the longest block")
    return n, k


def _shapes(text: str, on_gpu: bool) -> list[tuple[int, int]]:
    named = {"quick": quick_shapes(), "all": list(shapes())}
    if on_gpu:
        named = {"quick": list(CUDA_QUICK_SHAPES), "all": list(CUDA_SHAPES)}
    found = [shape for part in text.split(",") for shape in named.get(part) or [_shape(part)]]
    return list(dict.fromkeys(found))


def _rows(text: str, on_gpu: bool) -> list[int]:
    named = {"quick": QUICK_ROWS, "all": ROWS}
    if on_gpu:
        named = {"quick": CUDA_QUICK_ROWS, "all": CUDA_ROWS}
    return list(named.get(text) or dict.fromkeys(map(_positive, text.split(","))))


def _others(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    for name in names:
        if name not in OTHERS:
            raise argparse.ArgumentTypeError(f"{name!r} is not none or one of {_list(OTHERS)}")
    return names


def _formats(text: str) -> list[Format]:
    names = text.lower().split(",")
    for name in names:
        if name not in CATALOGUE:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {_list(CATALOGUE)}")
    return [CATALOGUE[name] for name in dict.fromkeys(names)]


def _conversions(text: str) -> tuple[int, ...]:
    return () if text == "none" else _shape(text)


if __name__ == "__main__":
    sys.exit(main())
