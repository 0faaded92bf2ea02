"""Native code that gives the bits of the definition, packed as they are born."""

from __future__ import annotations

from functools import lru_cache, partial

from torch import Tensor

from blockscale.formats import Float, Format
from blockscale.kernels.amax import derive_scales, native_amax
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.native import (
    NativeConfig,
    call_native,
    native_configs,
    native_format,
    native_refusal,
    pointer,
    strided_batch,
)
from blockscale.numerics import carry_from
from blockscale.problem import Problem, parse_kind
from blockscale.runtime import native

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cpu"
reads = reads_canonical


def refuses(problem: Problem) -> str | None:
    layout = problem.w_kind.layout
    if layout.codes not in ("bits", "planes") or layout.scales != "rows":
        return f"writes bits/rows and planes/rows, not {layout}"
    return native_refusal(problem.device)


def configs(problem: Problem) -> list[NativeConfig]:
    return native_configs()


def bind(
    problem: Problem, config: NativeConfig, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem, config))


def _run(
    problem: Problem,
    config: NativeConfig,
    x: Tensor,  # [groups, n, k]
    tensor_scale: Tensor | None,  # float32 [groups, n]; written where the problem derives it
    codebook: Tensor | None,  # float32 [2^bits]
    codes: Tensor,
    scale: Tensor,
    importance: Tensor | None = None,  # float32 [groups, k]
) -> None:
    layout = problem.w_kind.layout
    if problem.derives and tensor_scale is not None:
        derive_scales(x, problem.w_kind.format, native_amax, tensor_scale)
    groups, n, k = x.shape
    row_scale = None if tensor_scale is None else tensor_scale.contiguous()
    table = None if codebook is None else codebook.contiguous()
    weights = None if importance is None else importance.contiguous()
    call = native.Quantize(
        *_described(problem.w, problem.rule, pointer(table)),
        native.CODE_LAYOUTS[layout.codes],
        groups,
        n,
        k,
        strided_batch(x),
        x.stride(2),
        native.DTYPES[problem.x],
        pointer(row_scale),
        pointer(weights),
        strided_batch(codes),
        strided_batch(scale),
        native.ISAS.index(config.isa),
        config.threads,
    )
    call_native("bs_quantize", call)


@lru_cache(maxsize=1024)
def _described(
    kind: str, rule: str, table: int | None
) -> tuple[native.Format, native.ScaleRule, native.SmallFloat, bool]:
    """Format, rule and element, as native code takes them; the table by its address."""
    format = parse_kind(kind).format
    element = format.element
    is_float = isinstance(element, Float)
    rounding = _small_float(element) if isinstance(element, Float) else native.SmallFloat()
    return native_format(format, table), _scale_rule(format, rule), rounding, is_float


def _scale_rule(format: Format, rule: str) -> native.ScaleRule:
    element, scale = format.element, format.scale
    searches = rule in native.SEARCHES
    nan_code = scale.nan_code if scale.bits == 8 else 0  # float32 scales write their own NaN
    return native.ScaleRule(
        native.SEARCHES[rule if searches else ""],
        scale.power_of_two,
        carry_from(format, "absmax" if searches else rule) if scale.power_of_two else 0.0,
        element.max_exponent,
        -1 if nan_code is None else nan_code,
        element.max,
        # A float has a zero among its codes, so no scale is worse than the smallest.
        scale.smallest if isinstance(element, Float) else 0.0,
        _small_float(scale) if scale.bits == 8 else native.SmallFloat(),
        scale.max_code if scale.bits == 8 else 0,
    )


def _small_float(element: Float) -> native.SmallFloat:
    return native.SmallFloat(element.mantissa, element.bias, element.max, element.carry)
