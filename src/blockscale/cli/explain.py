"""`blockscale explain`: which kernel a product would run on, and the least it could cost."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockscale.cli.names import DTYPES, check_name, find_x_format
from blockscale.cli.options import Device, Dtype, Experts, Gated, WeightFormat, XFormat
from blockscale.cli.output import Output
from blockscale.formats import format as find_format

if TYPE_CHECKING:
    from blockscale.ops import Explanation


def explain(
    out: Output,
    m: Annotated[int, typer.Argument(help="Rows of x.", min=0)],
    n: Annotated[int, typer.Argument(help="Rows of the weight.", min=1)],
    k: Annotated[int, typer.Argument(help="Columns of both.", min=1)],
    format: WeightFormat = "nvfp4",
    x_format: XFormat = None,
    dtype: Dtype = "bfloat16",
    gated: Gated = False,
    experts: Experts = 0,
    device: Device = "cpu",
    gpu: Annotated[
        str | None,
        typer.Option(
            help="A GPU that need not be here, by name: h200, b200, rtx5090, ...",
            autocompletion=complete_gpu,
        ),
    ] = None,
) -> None:
    """Explain x [m, k] @ w [n, k].T: bytes, flops, floor, and every kernel's answer."""
    check_name("--dtype", dtype, DTYPES)
    weight = find_format(format)
    quantized = find_x_format(x_format)

    from blockscale import ops
    from blockscale.cli.products import Products, with_x
    from blockscale.runtime import device_of, resolve_device
    from blockscale.runtime import gpu as find_gpu

    if gpu is not None and device != "cpu":
        raise ValueError(f"--gpu {gpu} and --device {device}: give one of them")
    where = resolve_device(device) if gpu is None else None
    if where is not None and where.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: there are no kernels for {where.type}")
    ops.check_block("explain", "w", k, weight)
    facts = device_of(where) if where is not None else find_gpu(gpu or "")
    products = Products((m,), dtype, "silu", facts)
    problem = products.problem((m, n, k), experts, weight, gated, bias=False)
    (problem,) = with_x([problem], quantized, "explain")
    found = ops.explain(problem, where)
    out.report(_facts(found), str(found))


def _facts(found: Explanation) -> dict[str, Any]:
    problem, limit = found.problem, found.ceilings
    return {
        "problem": {
            **{each.name: getattr(problem, each.name) for each in fields(problem)},
            "device": asdict(problem.device),
        },
        "bytes": problem.bytes,
        "flops": problem.flops,
        "flops_per_byte": problem.intensity,
        "floor_seconds": found.floor_seconds,
        "bytes_seconds": found.bytes_seconds,
        "flops_seconds": found.flops_seconds,
        "read_bytes_per_second": limit.read_bytes_per_s,
        "flops_per_second": limit.flops_per_s,
        "kernel": found.kernel,
        "config": str(found.config),
        "reason": found.choice.reason,
        "predicted": _predicted(found),
        "kernels": [{"kernel": each.kernel, "refusal": each.refusal} for each in found.answers],
    }


def _predicted(found: Explanation) -> dict[str, Any] | None:
    kernel, config, _ = found.choice
    expected = kernel.bind(found.problem, config).predicted
    return None if expected is None else expected._asdict()


def complete_gpu(incomplete: str) -> list[str]:
    from blockscale.runtime.gpus import GPUS

    return [name for name in GPUS if name.startswith(incomplete.lower())]
