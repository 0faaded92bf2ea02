"""Problems that stand for what users do: to ask every kernel about, to compile, to tabulate."""

from __future__ import annotations

from collections.abc import Iterator

from blockscale.formats import CATALOGUE, KBIT4, MXFP4, MXFP8, NVFP4, Format
from blockscale.layouts import Layout, canonical
from blockscale.numerics import rules_of
from blockscale.ops.prepared import prepared_layout, x_layout
from blockscale.problem import Kind, Problem, parse_kind
from blockscale.runtime import Device

_N, _K = 14336, 4096
# Rows of which both kernels for few rows and kernels for many take the verb. One format stands for
# all: a verb changes what surrounds the decoding of weights, not the decoding. But gate and up have
# a table each.
_OTHER_PRODUCTS = {"gated_matmul": 64, "grouped_matmul": 2048, "grouped_gated_matmul": 2048}
_WITH_N = (
    "matmul",
    "gated_matmul",
    "grouped_matmul",
    "grouped_gated_matmul",
    "input_grad",
)


def example(
    verb: str,
    format: Format,
    device: Device,
    *,
    m: int = 1,
    n: int = _N,
    k: int = _K,
    x: str = "bfloat16",
    rule: str = "",
    weighted: bool = False,
    derives: bool = False,
    layout: Layout | None = None,
) -> Problem | None:
    """None where the verb has no meaning for the format. x: a dtype, or the kind of a quantised x,
    which is placed as kernels read it. layout: of the weights, where it is not the one that the
    device's kernels read."""
    kept = Kind(format, canonical(format))
    x_format = parse_kind(x).format if "@" in x else None
    ready = Kind(format, layout or prepared_layout(format, device, x_format))
    if x_format is not None:
        x = str(Kind(x_format, x_layout(x_format, ready, device)))
    if verb == "tensor_scale" and not format.has_tensor_scale:
        return None
    out = {"tensor_scale": "float32", "quantize": "uint8", "repack": "uint8"}.get(verb)
    rule = rule or {"tensor_scale": "row", "quantize": "absmax"}.get(verb, "")
    grouped, gated = verb.startswith("grouped"), "gated" in verb
    return Problem(
        verb=verb,
        m=m,
        n=n if verb in _WITH_N else 0,
        k=k,
        rule=rule,
        x=str(kept) if verb == "repack" else x,
        w=str(kept if verb in ("tensor_scale", "quantize") else ready),
        out=out or ("bfloat16" if "@" in x else x),
        groups=64 if grouped else 1,
        ragged=grouped,
        gated=gated,
        activation="silu" if gated else "",
        weighted=weighted,
        derives=derives,
        device=device,
    )


def examples(device: Device, whole: bool) -> Iterator[Problem]:
    """Of every verb and format; whole: with each number of rows, dtype and rule that changes what
    is compiled, and not only one of each."""
    for format in CATALOGUE.values():
        for problem in (*_products(format, device, whole), *_conversions(format, device, whole)):
            if problem is not None:
                yield problem


def _products(format: Format, device: Device, whole: bool) -> Iterator[Problem | None]:
    for m in (1, 8):
        yield example("matmul", format, device, m=m)
    yield example("input_grad", format, device, m=512)
    if format == NVFP4:
        coded = str(Kind(NVFP4, canonical(NVFP4)))
        yield example("matmul", format, device, x=coded)
        for verb, m in _OTHER_PRODUCTS.items():
            yield example(verb, format, device, m=m)
    if not format.is_codebook and (device.tcgen05 or device.block_scale_mma):
        yield from _block_scaled(format, device)
    if device.tcgen05 and format in (NVFP4, KBIT4):  # a float and a table stand for all
        yield example("matmul", format, device, m=512)
    if not whole:
        return
    for m in (2, 4, 16, 32, 64, 128):
        yield example("matmul", format, device, m=m)
    if format == KBIT4 and device.wgmma:
        yield example("gated_matmul", format, device, m=128)
    if format in (NVFP4, KBIT4):  # tiles that are split along k, of groups too
        yield example("matmul", format, device, m=512)
        yield example("grouped_matmul", format, device, m=4096, n=768)
    for m in (1, 16):
        yield example("matmul", format, device, m=m, x="float16")
    for m in (8, 16):
        yield example("matmul", format, device, m=m, n=28672)


def _block_scaled(format: Format, device: Device) -> Iterator[Problem | None]:
    """Both operands as the tensor cores of Blackwell take them. One format stands for all where a
    verb or a number of rows changes what is compiled, and MXFP8 is mixed with MXFP4."""
    blocked = Layout(canonical(format).codes, "blocked")
    x = str(Kind(format, blocked))
    yield example("matmul", format, device, m=512, x=x, layout=blocked)
    if format == MXFP4:
        wide = str(Kind(MXFP8, blocked))
        yield example("matmul", format, device, m=512, x=wide, layout=blocked)
    if format == NVFP4:
        yield example("matmul", format, device, m=128, x=x, layout=blocked)
        for verb in _OTHER_PRODUCTS:
            yield example(verb, format, device, m=512, x=x, layout=blocked)


def _conversions(format: Format, device: Device, whole: bool) -> Iterator[Problem | None]:
    k = max(format.block, 64)
    yield example("repack", format, device, k=k)
    for layout in dict.fromkeys((canonical(format), prepared_layout(format, device))):
        for m in (1, 2**20) if layout == canonical(format) else (1,):
            yield example("dequantize", format, device, m=m, k=k, layout=layout)
    for dtype in ("bfloat16", "float16", "float32") if whole else ("bfloat16",):
        for rule in ("row", "matrix"):
            yield example("tensor_scale", format, device, k=k, x=dtype, rule=rule)
    for rule in rules_of(format) if whole else rules_of(format)[:1]:
        yield example("quantize", format, device, k=k, rule=rule)
        if whole and rule == "mse":
            yield example("quantize", format, device, k=k, rule=rule, weighted=True)
    if format.has_tensor_scale:
        yield example("quantize", format, device, k=k, derives=True)
