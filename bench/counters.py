"""What the GPU counted while a product ran: python -m bench.counters

Nsight Compute (`ncu`) runs this again with `--products`, once for all, and reads of each launch the
bytes from memory, the hits in the L2 cache, the slots in which an instruction was issued, and how
long the tensor cores were busy. It empties the caches before each launch and holds the clocks
still, so its times are longer than those of bench.run. Stored in bench/results/counters.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import blockscale as bs
from bench.machine import commit, describe_gpu
from bench.random_weights import random_weight
from bench.results import FOLDER as RUNS
from bench.results import store_whole
from blockscale.kernels.cuda.layout import fragments

FOLDER = RUNS / "counters"
SHAPES = ((28672, 8192), (14336, 4096))
ROWS = (1, 16, 64)
FORMATS = (bs.NVFP4, bs.MXFP4, bs.KBIT4)
METRICS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "read_MB": ("dram__bytes_read.sum", 1e-6),
    "L2_hit_percent": ("lts__t_sector_hit_rate.pct", 1.0),
    "issue_percent": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1.0),
    "tensor_percent": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 1.0),
    "registers": ("launch__registers_per_thread", 1.0),
}


def cases() -> Iterator[tuple[bs.Format, int, int, int]]:
    for n, k in SHAPES:
        for format in FORMATS:
            for m in ROWS:
                yield format, m, n, k


def products() -> None:
    """Each once, in order, under the eyes of ncu."""
    for format, m, n, k in cases():
        layout = fragments(format)
        if layout is None:
            raise TypeError(f"{format.spec} is not prepared for a GPU")
        w = random_weight(format, (n, k), layout, "cuda")
        bs.matmul(torch.randn(m, k, device="cuda", dtype=torch.bfloat16), w)
        torch.cuda.synchronize()


def count(ncu: str) -> list[dict[str, float]]:
    """A row for each launch of the streaming kernel."""
    names = ",".join(metric for metric, _ in METRICS.values())
    asked = [ncu, "--csv", "--page", "raw", "--print-units", "base"]
    asked += ["--kernel-name", "stream", "--metrics", names]
    asked += [sys.executable, "-m", "bench.counters", "--products"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"ncu failed ({done.returncode}): {(done.stderr or done.stdout)[-2000:]}"
        )
    return parse(done.stdout)


def parse(text: str) -> list[dict[str, float]]:
    """ncu's table: a header, a line of units, and a line for each launch; its own words before."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))[1:]
    return [
        {
            name: float(row[metric].replace(",", "")) * unit
            for name, (metric, unit) in METRICS.items()
        }
        for row in rows
    ]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no CUDA device", file=sys.stderr)
        return 1
    if arguments.products:
        products()
        return 0
    ncu = shutil.which("ncu")
    if ncu is None:
        print("ncu is not on the path: it comes with the CUDA toolkit", file=sys.stderr)
        return 1
    described = list(cases())
    counted = count(ncu)
    if len(counted) != len(described):
        print(f"{len(counted)} launches were counted, not {len(described)}", file=sys.stderr)
        return 1
    head, dirty = commit(arguments.commit)
    report: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": head,
        "dirty": dirty,
        "machine": describe_gpu(),
        "products": [
            {"format": format.name, "m": m, "n": n, "k": k, **counts}
            for (format, m, n, k), counts in zip(described, counted, strict=True)
        ],
    }
    path = arguments.out or FOLDER / f"{report['date'][:10]}.json"
    store_whole(report, path)
    print(json.dumps(report["products"], indent=1))
    print(f"stored: {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.counters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--products", action="store_true", help="what ncu runs")
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--out", type=Path, help="default: a file in bench/results/counters")
    return parser


if __name__ == "__main__":
    sys.exit(main())
