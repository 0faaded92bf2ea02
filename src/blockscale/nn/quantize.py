"""`quantize_`: the linear layers and experts of a model, quantised in place, one after the other.

All decisions are made first, so that a mistake in the arguments leaves the model as it was. Then
each layer is quantised, measured and put in its place before the next one is touched: beside the
model there is never more than one layer in two forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod, sqrt
from typing import NamedTuple, cast, get_args

import torch
from torch import Tensor, nn

from blockscale.formats import Format, NormalFloat, normal_float
from blockscale.nn.experts import Experts
from blockscale.nn.fused import read_fused
from blockscale.nn.hooks import carry_hooks
from blockscale.nn.importance import RANDOM, Importance, find_importance
from blockscale.nn.linear import Linear
from blockscale.nn.packed import PackedModule, known_x_format
from blockscale.nn.plan import Step, Weight, make_plan, weights_of
from blockscale.nn.progress import track
from blockscale.nn.projections import shared_tensor_scales
from blockscale.nn.report import LayerReport, Report
from blockscale.nn.saved_config import describe_in_config, untie_in_config
from blockscale.nn.selection import Formats, Where, selector
from blockscale.numerics import check_rule
from blockscale.tensor import QTensor, fit_codebook, quantize

_PANEL = 1 << 22  # values whose error is measured together
_SAMPLES = 1 << 22  # values that a codebook is fitted to


def quantize_(
    model: nn.Module,
    format: Format | str | Mapping[str, Format | str | None],
    where: Where = None,
    scale: str = "mse",
    x_format: Format | str | None = None,
    *,
    head: bool = False,
    codebook: str | None = None,
    importance: Importance = RANDOM,
    progress: bool | None = None,
) -> Report:
    """Swap every `nn.Linear` and all fused experts of a model for quantised ones, in place.

    format    one for all; or by pattern, as in {"*.down_proj": MXFP8, "*": KBIT4}: the first that
              fits a weight's name counts, None keeps it. The weights of experts are called
              "....experts.gate_up_proj" and "....experts.down_proj"
    where     which layers: a pattern, several, or a function of a layer's name and module. By
              default all but output heads and routers
    scale     how block scales are chosen, as in `quantize`
    x_format  what activations are quantised to on the fly, as in `matmul`
    head      output heads too, in the format of their name. One that is tied to an embedding gets a
              packed copy of its own, which the report counts, and the embedding stays
    codebook  of weights in a k-bit format. "fit": each gets a table fitted to it. "mid_quantiles",
              "bin_means": all get that table of `formats.normal_float`
    importance  what errors cost in each column of a weight, for scale="mse": "random" measures the
              inputs of all layers on random token ids, where the model is a language model; a
              function of the model measures them while it runs it on batches; tensors by the names
              of weights, as `nn.measure_importance` returns them; None: all columns are alike
    progress  a bar on stderr; None: where that is a terminal

    A layer whose k is not a multiple of the block is kept, as is one that shares its weight with
    another layer; the report, which prints as a table, gives the reasons.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize_: model must be an nn.Module, got {type(model).__name__}")
    formats, x_format = Formats(format), known_x_format(x_format)
    for each in formats:
        check_rule(scale, each)
    _check_codebook(codebook, formats)
    plan = make_plan(model, formats, selector(where, head=head), x_format, head=head)
    _check_loaded(model, plan)
    found = find_importance(model, importance, scale, plan, progress)
    rule = _Rule(scale, found.by_name, _shared_scales(model, plan, codebook), codebook)
    layers: list[LayerReport] = []
    with torch.inference_mode(mode=False):  # what that makes could never take part in training
        for step in track(plan, lambda step: step.names[0], progress):
            names, decision = step.names, step.decision
            if isinstance(decision, str):
                layers += _kept(names[0], model.get_submodule(names[0]), decision)
                continue
            swapped = _swap(model, names, decision, rule, x_format)
            if step.tied_to:
                untie_in_config(model)
                swapped = [_as_copy(layer, step.tied_to) for layer in swapped]
            layers += swapped
    describe_in_config(model)
    return Report(tuple(layers), formats.unused, found.origin)


def _as_copy(layer: LayerReport, original: str) -> LayerReport:
    """Of a weight that stays as well: the packed bytes come on top."""
    return replace(layer, bytes_before=0, reason=f"a copy: {original} keeps the weight")


class _Rule(NamedTuple):
    """How scales are chosen."""

    scale: str
    importance: Mapping[str, Tensor]  # by the names of weights
    tensor_scales: Mapping[str, Tensor]  # by the names of weights that share theirs with others
    codebook: str | None


def _shared_scales(
    model: nn.Module, plan: Sequence[Step], codebook: str | None
) -> dict[str, Tensor]:
    """A weight with a table of its own has a range of its own, and keeps its tensor scale."""
    chosen = [
        (weight, format)
        for names, decision, _ in plan
        if not isinstance(decision, str)
        for weight, format in zip(
            weights_of(names[0], model.get_submodule(names[0])), decision, strict=True
        )
        if codebook is None or not _is_fittable(format)
    ]
    return shared_tensor_scales(chosen)


def _check_loaded(model: nn.Module, plan: Sequence[Step]) -> None:
    for names, decision, _ in plan:
        if isinstance(decision, str):
            continue
        for weight in weights_of(names[0], model.get_submodule(names[0])):
            if any(part.is_meta for part in weight.parts):
                raise ValueError(f"quantize_: {weight.name} is on the meta device: load it first")


def _kept(name: str, module: nn.Module, reason: str) -> list[LayerReport]:
    if isinstance(module, PackedModule):
        held = module.qtensors()
        return [
            LayerReport(
                f"{name}.{key}" if len(held) > 1 else name,
                q.shape,
                q.nbytes,
                q.nbytes,
                reason=reason,
            )
            for key, q in held.items()
        ]
    return [
        LayerReport(weight.name, weight.shape, weight.nbytes, weight.nbytes, reason=reason)
        for weight in weights_of(name, module)
    ]


def _swap(
    model: nn.Module,
    names: tuple[str, ...],
    formats: tuple[Format, ...],
    rule: _Rule,
    x_format: Format | str | None,
) -> list[LayerReport]:
    """Quantise one layer, and let go of its numbers."""
    module = model.get_submodule(names[0])
    layers, parts = [], []
    for weight, format in zip(weights_of(names[0], module), formats, strict=True):
        fitted = _with_codebook(weight, format, rule.codebook)
        weights = rule.importance.get(weight.name)
        made = [
            quantize(
                part.contiguous(),
                fitted,
                scale=rule.scale,
                tensor_scale=rule.tensor_scales.get(weight.name),
                importance=weights,
            )
            for part in weight.parts
        ]
        after = sum(q.nbytes for q in made)
        error = _relative_error(weight.parts, made)
        layers.append(
            LayerReport(
                weight.name,
                weight.shape,
                weight.nbytes,
                after,
                fitted,
                error,
                weighted=weights is not None,
            )
        )
        parts += made
    twin = _assemble(module, parts, x_format).train(module.training)
    carry_hooks(module, twin)
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, twin)
    return layers


def _assemble(
    module: nn.Module, parts: list[QTensor], x_format: Format | str | None
) -> Linear | Experts:
    """The quantised twin of a layer."""
    if isinstance(module, nn.Linear):
        return Linear.from_qtensor(parts[0], module.bias, x_format)
    fused = read_fused(module)
    if isinstance(fused, str):
        raise TypeError(fused)
    gate, up, down = parts
    return Experts.from_qtensors(
        gate,
        up,
        down,
        activation=fused.activation,
        gate_bias=fused.gate_bias,
        up_bias=fused.up_bias,
        down_bias=fused.down_bias,
        x_format=x_format,
        stacked=fused.stacked,
    )


def _check_codebook(codebook: str | None, formats: Formats) -> None:
    known = ("fit", *get_args(NormalFloat))
    if codebook is not None and codebook not in known:
        raise ValueError(
            f"quantize_: codebook must be None or one of {', '.join(known)}, got {codebook!r}"
        )
    if codebook and not any(_is_fittable(format) for format in formats):
        raise ValueError(
            f"quantize_: codebook={codebook!r} needs a format with a codebook of 2 to 5 bits, such "
            f"as KBIT4; got {', '.join(map(str, formats))}"
        )


def _is_fittable(format: Format) -> bool:
    return format.is_codebook and format.element.bits <= 5


def _with_codebook(weight: Weight, format: Format, codebook: str | None) -> Format:
    if codebook is None or not _is_fittable(format):
        return format
    if codebook == "fit":
        return _fit(weight, format)
    element = normal_float(format.element.bits, cast(NormalFloat, codebook))
    return format.replace(name=f"{format}-{codebook}", element=element)


def _fit(weight: Weight, format: Format) -> Format:
    """With a table fitted to the weight: one for gate and up, which are decoded together."""
    step = -(-prod(weight.shape) // _SAMPLES)
    rows = [part.detach()[..., ::step, :].flatten(0, -2) for part in weight.parts]
    samples = torch.cat(rows)
    if not samples.any():
        return format
    fitted = fit_codebook(samples, format.element.bits, block=format.block)
    return format.replace(name=f"{format}-fitted", element=fitted.element)


def _relative_error(weights: Sequence[Tensor], made: Sequence[QTensor]) -> float:
    """|w - dequantised| / |w| over all parts, summed in float64."""
    noise = signal = 0.0
    for weight, q in zip(weights, made, strict=True):
        for values, codes in _panels(weight.detach(), q):
            exact = values.double()
            noise += (exact - codes.dequantize()).square().sum().item()
            signal += exact.square().sum().item()
    return sqrt(noise / signal) if signal else sqrt(noise)


def _panels(weight: Tensor, q: QTensor) -> Iterator[tuple[Tensor, QTensor]]:
    """Some rows of a matrix at a time."""
    if weight.dim() == 3:
        for matrix, codes in zip(weight, q, strict=True):
            yield from _panels(matrix, codes)
        return
    step = max(1, _PANEL // weight.shape[-1])
    for start in range(0, len(weight), step):
        yield weight[start : start + step], q[start : start + step]
