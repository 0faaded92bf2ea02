"""The tables of docs/coverage.md: which kernel takes which format for which verb on which device.

Every registered kernel is asked, by `refuses`, about example problems for a CPU and for GPUs that
need not be here. A kernel takes a format where it takes one of the examples: weights as they are
stored or as `prepare` lays them out, one row of x or 256, plain or quantised to the same format;
and both operands with blocked scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from blockscale.formats import CATALOGUE, Format
from blockscale.kernels import KERNELS, Kernel
from blockscale.layouts import Layout, canonical
from blockscale.ops import example, prepared_layout
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device, device_of, gpu, load_native

# Device class -> the GPU that stands for it.
_GPUS = {"sm_80": "a100", "sm_90": "h200", "sm_100": "b200", "sm_120": "rtx5090"}
_N = _K = 4096


def _devices() -> dict[str, Device]:
    return {"cpu": device_of(torch.device("cpu")), **{arch: gpu(_GPUS[arch]) for arch in _GPUS}}


def missing() -> str | None:
    """Why the tables cannot be made here."""
    native = load_native()
    return native if isinstance(native, str) else None


def coverage_tables() -> str:
    return "\n\n".join(_table(verb, kernels) for verb, kernels in KERNELS.items())


def _table(verb: str, kernels: tuple[Kernel, ...]) -> str:
    lines = [
        f"## {verb}",
        "",
        f"| kernel | cpu | {' | '.join(_GPUS)} |",
        "|---|---|" + "---|" * len(_GPUS),
    ]
    for kernel in kernels:
        cells = [_taken(kernel, verb, device) for device in _devices().values()]
        lines.append(f"| `{kernel.NAME}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _taken(kernel: Kernel, verb: str, device: Device) -> str:
    """The formats, shortly."""
    asked = {name: list(_examples(verb, CATALOGUE[name], device)) for name in CATALOGUE}
    asked = {name: problems for name, problems in asked.items() if problems}
    names = [
        name
        for name, problems in asked.items()
        if any(kernel.refuses(each) is None for each in problems)
    ]
    left_out = [name for name in asked if name not in names]
    if not left_out:
        return "all"
    if not names:
        return "-"
    return f"all but {', '.join(left_out)}" if len(left_out) < len(names) else ", ".join(names)


def _examples(verb: str, format: Format, device: Device) -> Iterator[Problem]:
    """Problems of the verb, such as a decoding step and a prompt have."""
    layouts = {canonical(format), prepared_layout(format, device)}
    quantised = str(Kind(format, canonical(format)))
    for layout, m in product(sorted(layouts, key=str), (1, 256)):
        for x in ("bfloat16", quantised) if verb.endswith("matmul") else ("bfloat16",):
            found = example(verb, format, device, m=m, n=_N, k=_K, x=x, layout=layout)
            if found is not None:
                yield found
    if verb.endswith("matmul") and format.scale.bits == 8:
        blocked = Layout(canonical(format).codes, "blocked")
        x = str(Kind(format, blocked))
        found = example(verb, format, device, m=256, n=_N, k=_K, x=x, layout=blocked)
        if found is not None:
            yield found
