"""Quantise one weight matrix to every format: a table, and a picture of size against quality.

The matrix is random but looks like a real one: heavy-tailed values, rows and columns of different
size, and a few outlier columns.

    python examples/compare_formats.py [--out FILE.png] [--rows N] [--columns K]
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import blockscale as bs
from blockscale.formats import CATALOGUE
from blockscale.numerics import rules_of


@dataclass
class Result:
    format: bs.Format
    rule: str
    bits: float
    megabytes: float
    sqnr: float  # dB
    largest: float  # largest error, over the largest weight
    matmul: float  # relative error of x @ w.T


def realistic_weight(rows: int, columns: int) -> torch.Tensor:
    values = torch.distributions.StudentT(6.0).sample((rows, columns)) * 0.02
    values *= torch.exp(0.3 * torch.randn(rows, 1) + 0.3 * torch.randn(1, columns))
    values[:, torch.randperm(columns)[: columns // 256]] *= 6  # outlier columns
    return values


def measure(w: torch.Tensor, x: torch.Tensor, fmt: bs.Format, rule: str) -> Result:
    q = bs.quantize(w, fmt, scale=rule)
    error = (q.dequantize() - w).double()
    exact = x.double() @ w.double().T
    product = bs.matmul(x, q).double()
    return Result(
        format=fmt,
        rule=rule,
        bits=q.bits_per_value,
        megabytes=q.nbytes / 1e6,
        sqnr=10 * math.log10(w.double().square().sum() / error.square().sum()),
        largest=(error.abs().max() / w.abs().max()).item(),
        matmul=((product - exact).norm() / exact.norm()).item(),
    )


def show(results: list[Result], w: torch.Tensor, console: Console) -> None:
    table = Table(
        title=f"a {w.shape[0]} x {w.shape[1]} weight, {w.numel() * 2 / 1e6:.1f} MB in bfloat16",
        title_justify="left",
    )
    table.add_column("format")
    table.add_column("scale rule")
    for heading in ("bits/value", "MB", "SQNR dB", "largest error", "matmul error"):
        table.add_column(heading, justify="right")
    last = None
    for r in results:
        table.add_row(
            r.format.name if r.format is not last else "",
            r.rule,
            f"{r.bits:.2f}",
            f"{r.megabytes:.2f}",
            f"{r.sqnr:.2f}",
            f"{r.largest:.2%}",
            f"{r.matmul:.2%}",
        )
        last = r.format
    console.print(table)


def draw(results: list[Result], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    style = {"absmax": ("o", "#3182bd"), "four_over_six": ("s", "#e6550d"), "mse": ("^", "#31a354")}
    figure, axes = plt.subplots(figsize=(9.5, 6))
    for rule, (marker, colour) in style.items():
        chosen = [r for r in results if r.rule == rule]
        axes.scatter(
            [r.bits for r in chosen], [r.sqnr for r in chosen],
            marker=marker, color=colour, s=52, label=f'scale="{rule}"', zorder=3,
        )  # fmt: skip
    for fmt in {id(r.format): r.format for r in results}.values():
        best = max((r for r in results if r.format is fmt), key=lambda r: r.sqnr)
        # Neighbours at the same size are labelled to the left.
        left = fmt.name in ("kbit4", "mxfp4", "bnb_fp4", "mxfp8_e5m2", "mxfp6_e3m2")
        axes.annotate(
            fmt.name, (best.bits, best.sqnr), xytext=(-9 if left else 9, -4),
            textcoords="offset points", ha="right" if left else "left", fontsize=9,
        )  # fmt: skip
    bits = [1.8, 8.9]
    axes.plot(bits, [6.02 * b - 4 for b in bits], color="#bbbbbb", linewidth=1, linestyle="--")
    axes.text(5.35, 30.2, "slope: 6 dB a bit", color="#888888", fontsize=9, rotation=40)
    axes.set_xlim(1.8, 9.4)
    axes.set_ylim(3, 36)
    axes.set_xlabel("bits per value, scales included")
    axes.set_ylabel("signal to quantisation noise, dB")
    axes.set_title("One weight matrix in every format", loc="left")
    axes.grid(color="#eeeeee")
    axes.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/demo.png"), help="picture to write")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=2048)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    w = realistic_weight(arguments.rows, arguments.columns)
    x = torch.randn(16, arguments.columns)
    shown = ("absmax", "four_over_six", "mse")
    jobs = [(f, rule) for f in CATALOGUE.values() for rule in rules_of(f) if rule in shown]
    console = Console()
    results = [
        measure(w, x, *job) for job in track(jobs, "quantising", console=console, transient=True)
    ]
    show(results, w, console)
    console.print()
    console.print(str(bs.explain(x, bs.quantize(w, bs.NVFP4))), markup=False, highlight=False)
    draw(results, arguments.out)
    console.print(f"\npicture: {arguments.out}")


if __name__ == "__main__":
    main()
