"""The tables of docs/coverage.md: which kernel takes which format for which verb on which device.

Every registered kernel is asked, by `refuses`, about example problems for each device class. A
kernel takes a format where it takes one of the examples: weights as they are stored or as `prepare`
lays them out, one row of x or 256, plain or quantised to the same format.

Kernels also refuse where this installation lacks what they need, which says nothing of the kernel:
the tables are made where there are the native library and NVRTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from blockscale.formats import CATALOGUE, Format
from blockscale.kernels import KERNELS, Kernel
from blockscale.layouts import canonical
from blockscale.ops import prepared_layout
from blockscale.problem import Kind, Problem
from blockscale.runtime import load_native
from blockscale.runtime.cuda import load_nvrtc

# Device class -> the target that stands for it.
TARGETS = {
    "cpu": "cpu",
    "sm_80": "sm_80",
    "sm_90": "sm_90a",
    "sm_100": "sm_100a",
    "sm_120": "sm_120a",
}
_N = _K = 4096


def missing() -> str | None:
    """Why the tables cannot be made here."""
    return next((each for each in (load_native(), load_nvrtc()) if isinstance(each, str)), None)


def coverage_tables() -> str:
    return "\n\n".join(_table(verb, kernels) for verb, kernels in KERNELS.items())


def _table(verb: str, kernels: tuple[Kernel, ...]) -> str:
    lines = [
        f"## {verb}",
        "",
        f"| kernel | {' | '.join(TARGETS)} |",
        "|---|" + "---|" * len(TARGETS),
    ]
    for kernel in kernels:
        cells = [_taken(kernel, verb, target) for target in TARGETS.values()]
        lines.append(f"| `{kernel.__name__.rpartition('.')[2]}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _taken(kernel: Kernel, verb: str, target: str) -> str:
    """The formats, shortly."""
    names = [
        name
        for name, format in CATALOGUE.items()
        if any(kernel.refuses(each) is None for each in examples(verb, format, target))
    ]
    left_out = [name for name in CATALOGUE if name not in names]
    if not left_out:
        return "all"
    if not names:
        return "-"
    return f"all but {', '.join(left_out)}" if len(left_out) < len(names) else ", ".join(names)


def examples(verb: str, format: Format, target: str) -> Iterator[Problem]:
    """Problems of the verb, such as a decoding step and a prompt have."""
    layouts = {canonical(format), prepared_layout(format, target)}
    is_product = verb.endswith("matmul")
    for layout, m in product(sorted(layouts, key=str), (1, 256)):
        kind = str(Kind(format, layout))
        quantised_x = str(Kind(format, canonical(format)))
        for x in ("bfloat16", quantised_x) if is_product else ("bfloat16",):
            yield Problem(
                verb=verb,
                m=m,
                n=_N,
                k=_K,
                groups=8 if verb.startswith("grouped") else 1,
                ragged=verb.startswith("grouped"),
                gated="gated" in verb,
                activation="silu" if "gated" in verb else "",
                rule="absmax" if verb == "quantize" else "",
                x=x,
                w=kind,
                out="bfloat16",
                target=target,
            )
