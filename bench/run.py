"""Measure the products on this machine: python -m bench.run --device cpu

Every result is checked before anything is timed. The run is printed as it goes, and stored in
bench/results after each shape; `python docs/generate.py` makes the tables of the documentation
from what is stored.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch
from rich.console import Console

from bench.contest import contest, lacks_memory
from bench.conversions import convert
from bench.machine import commit, describe_machine, versions
from bench.problems import QUICK_ROWS, ROWS, quick_shapes, shapes
from bench.results import FOLDER, Run
from bench.rivals import FORMATS, Rival, field
from bench.show import show_case, show_conversions, show_start
from bench.timing import CLOCKS
from blockscale.formats import CATALOGUE, Format
from blockscale.runtime import load_native

_PACKAGES = ("torch", "bitsandbytes", "onnxruntime", "onnx")
_CONVERSION_SHAPE = (4096, 4096)
_FILE_WIDTH = 140  # of the tables where there is no terminal to ask


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    rivals = field(arguments.formats, arguments.threads)
    missing = {rival.name: reason for rival in rivals if (reason := rival.missing())}
    run = _begin(arguments, missing)
    show_start(console, run)
    path = None if arguments.no_store else arguments.out or FOLDER / _file_name(run)
    with torch.no_grad():
        _measure(run, [r for r in rivals if r.name not in missing], arguments, console, path)
    if path:
        console.print(f"stored: {path}")
    return 0


def _measure(
    run: Run,
    rivals: Sequence[Rival],
    arguments: argparse.Namespace,
    console: Console,
    path: Path | None,
) -> None:
    """Shape by shape; what is done is stored at once, so that an interruption loses one shape."""
    clock = CLOCKS[arguments.device]()
    for n, k in arguments.shapes:
        if reason := lacks_memory(n, k):
            run.skipped[f"{n}x{k}"] = reason
            console.print(f"skipped: {n} x {k} ({reason})")
            continue
        for case in contest(n, k, arguments.rows, rivals, clock, arguments.seconds):
            run.cases.append(case)
            show_case(console, case)
        if path:
            run.store(path)
    if arguments.conversions:
        run.conversions.extend(convert(*arguments.conversions, clock, arguments.seconds))
        show_conversions(console, run.conversions)
    if path:
        run.store(path)


def _begin(arguments: argparse.Namespace, missing: dict[str, str]) -> Run:
    head, dirty = commit()
    return Run(
        device=arguments.device,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=arguments.commit or head,
        dirty=dirty,
        machine=describe_machine(arguments.threads),
        versions=versions(_PACKAGES),
        settings={
            "seconds": arguments.seconds,
            "formats": [format.name for format in arguments.formats],
            "native": _native_library(),
        },
        missing=missing,
    )


def _native_library() -> str:
    """The instruction set that our kernels use, or why everything runs on the reference."""
    loaded = load_native()
    return f"none ({loaded})" if isinstance(loaded, str) else loaded.isa


def _file_name(run: Run) -> str:
    cpu = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(\w+\)", "", run.machine["cpu"]).lower()).strip("-")
    when = re.sub(r"[-:]", "", run.date[:19])
    return f"{when}-{cpu}-{run.machine['threads']}-threads.json"


# --- arguments -----------------------------------------------------------------------------------


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
        "--shapes",
        type=_shapes,
        default="quick",
        help="weights [N, K]: quick, all, or NxK; several with commas. default: quick",
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        default="quick",
        help=f"rows of x: quick ({_list(QUICK_ROWS)}), all ({_list(ROWS)}), or numbers with "
        "commas. default: quick",
    )
    parser.add_argument(
        "--formats",
        type=_formats,
        default=FORMATS,
        help=f"of ours, with commas. default: {_list(f.name for f in FORMATS)}",
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=5.0, help="to time a case for. default: %(default)s"
    )
    parser.add_argument(
        "--conversions",
        type=_conversions,
        default=_CONVERSION_SHAPE,
        metavar="NxK",
        help="matrix that is quantised and dequantised, or none. default: "
        f"{'x'.join(map(str, _CONVERSION_SHAPE))}",
    )
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    storing = parser.add_mutually_exclusive_group()
    storing.add_argument("--out", type=Path, help="file to store. default: one in bench/results")
    storing.add_argument("--no-store", action="store_true", help="print only")
    return parser


def _list(values: object) -> str:
    return ",".join(map(str, values))


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


def _shapes(text: str) -> list[tuple[int, int]]:
    named = {"quick": quick_shapes(), "all": list(shapes())}
    found = [shape for part in text.split(",") for shape in named.get(part) or [_shape(part)]]
    return list(dict.fromkeys(found))


def _rows(text: str) -> list[int]:
    named = {"quick": QUICK_ROWS, "all": ROWS}
    return list(named.get(text) or dict.fromkeys(map(_positive, text.split(","))))


def _formats(text: str) -> list[Format]:
    names = text.lower().split(",")
    for name in names:
        if name not in CATALOGUE:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {_list(CATALOGUE)}")
    return [CATALOGUE[name] for name in dict.fromkeys(names)]


def _conversions(text: str) -> tuple[int, int] | None:
    return None if text == "none" else _shape(text)


if __name__ == "__main__":
    sys.exit(main())
