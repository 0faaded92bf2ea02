"""The tables of docs/gpus.md: which kernel runs for which product and m on GPUs that need not be
here, and whether it has been shown to work there. Kernels are chosen by rule, as on any machine."""

from __future__ import annotations

from blockscale.formats import KBIT4, MXFP8, NVFP4, Format
from blockscale.layouts import canonical
from blockscale.ops import answers, choose, example
from blockscale.problem import Kind
from blockscale.runtime import Device, gpu

# The GPU that stands for those of its kind, and the others.
_GPUS = {
    "a100": "A100 (sm_80); RTX 30 (sm_86) has the same kernels",
    "rtx4090": "RTX 4090, L40S (sm_89)",
    "h200": "H100, H200 (sm_90)",
    "b200": "B200 (sm_100); B300 (sm_103) has the same kernels",
    "rtx5090": "RTX 5090, RTX PRO 6000 (sm_120); GB10 (sm_121) has the same kernels",
}
_ROWS = (1, 16, 128, 1024)
_PRODUCTS: tuple[tuple[str, str, Format, bool], ...] = (  # label, verb, format, x is quantised too
    ("NVFP4 weights", "matmul", NVFP4, False),
    ("KBIT4 weights", "matmul", KBIT4, False),
    ("NVFP4 weights, gated", "gated_matmul", NVFP4, False),
    ("NVFP4 weights, 64 experts", "grouped_matmul", NVFP4, False),
    ("NVFP4 times NVFP4", "matmul", NVFP4, True),
    ("MXFP8 times MXFP8", "matmul", MXFP8, True),
)


def gpu_tables() -> str:
    return "\n\n".join(_table(title, gpu(name)) for name, title in _GPUS.items())


def _table(title: str, device: Device) -> str:
    lines = [
        f"### {title}",
        "",
        "| product | " + " | ".join(f"m = {m}" for m in _ROWS) + " |",
        "|---|" + "---|" * len(_ROWS),
    ]
    for label, *product in _PRODUCTS:
        cells = [_cell(*product, device, m) for m in _ROWS]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(verb: str, format: Format, coded: bool, device: Device, m: int) -> str:
    x = str(Kind(format, canonical(format))) if coded else "bfloat16"
    problem = example(verb, format, device, m=m, n=8192, k=8192, x=x)
    if problem is None:
        raise RuntimeError(f"{verb} of {format} must have a meaning")
    name = choose(problem).kernel.NAME
    states = {each.kernel: each.standing.state for each in answers(problem)}
    return f"`{name}`{'' if states[name] == 'proven' else ' ?'}"
