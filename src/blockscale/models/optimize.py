"""`optimize_`: what makes a quantised model decode faster on the CPU it is on, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from blockscale.formats import Format
from blockscale.formats import format as find_format
from blockscale.models.decoder import FastDecoder
from blockscale.nn.linear import Linear
from blockscale.nn.packed import PackedModule
from blockscale.nn.quantize import quantize_
from blockscale.nn.saved_config import describe_in_config
from blockscale.nn.selection import HEADS, matches
from blockscale.runtime import load_native, usable_threads
from blockscale.tensor import QTensor


@dataclass(frozen=True)
class Optimized:
    """What was changed, and what was left, with the reasons. Prints one line for each."""

    changed: tuple[str, ...]
    left: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*self.changed, *(f"left: {reason}" for reason in self.left)])


def optimize_(
    model: nn.Module,
    *,
    head: Format | str | bool = False,
    x_format: str | None = "int8",
) -> Optimized:
    """Make a quantised transformers model on a CPU decode faster, in place.

    head      the output head, packed: in this format; True: in the one that most layers have;
              False: as it is, since its errors reach the logits unattenuated. A tied one gets a
              packed copy, and the embedding stays
    x_format  "int8": layers whose weights have 2 or 4 bits round x to int8 in blocks of 32; None:
              all take x as it is

    Prompts and tokens pass all layers in one native call, where the layers are known; `explain`
    of a layer's weight with its x_format says how its product runs. Says what it has changed.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"optimize_: model must be an nn.Module, got {type(model).__name__}")
    if x_format not in (None, "int8"):
        raise ValueError(f'optimize_: x_format must be "int8" or None, got {x_format!r}')
    weights = [
        weight
        for module in model.modules()
        if isinstance(module, PackedModule)
        for weight in module.qtensors().values()
    ]
    if not weights:
        raise ValueError("optimize_: no layer is quantised: bs.quantize_(model, bs.KBIT4) first")
    away = [weight for weight in weights if weight.device.type != "cpu"]
    if away:
        raise ValueError(f"optimize_ is for CPUs, and {len(away)} weights are on {away[0].device}")
    notes = _Notes()
    head_format = _format_of_most(weights) if isinstance(head, bool) else find_format(head)
    del weights, away  # binding packs others, one layer at a time
    _round_activations(model, x_format)
    if head is False or not _pack_head(model, head_format, x_format, notes):
        describe_in_config(model)  # else `quantize_` has done so
    _note_rounding(model, x_format, notes)
    _decode_in_one_call(model, notes)
    return Optimized(tuple(notes.changed), tuple(notes.left))


class _Notes:
    def __init__(self) -> None:
        self.changed: list[str] = []
        self.left: list[str] = []


def _format_of_most(weights: Sequence[QTensor]) -> Format:
    counts: dict[Format, int] = {}
    for weight in weights:
        counts[weight.format] = counts.get(weight.format, 0) + weight.numel()
    return max(counts, key=lambda each: counts[each])


def _pack_head(model: nn.Module, format: Format, x_format: str | None, notes: _Notes) -> bool:
    """Whether there was one to pack."""
    heads = [
        module
        for name, module in model.named_modules()
        if any(matches(pattern, name) for pattern in HEADS)
    ]
    if any(isinstance(module, PackedModule) for module in heads):
        notes.left.append("the output head, which is packed already")
        return False
    if not heads:
        notes.left.append("no output head was found")
        return False
    # What it is to have in the end: `quantize_` warns of layers that differ.
    widths = [module.in_features for module in heads if isinstance(module, nn.Linear)]
    report = quantize_(
        model,
        format,
        where=(),
        x_format=x_format if all(_takes_int8(format, k) for k in widths) else None,
        head=True,
        importance=None,
        progress=False,
    )
    for layer in report.quantized:
        notes.changed.append(
            f"{layer.name}: {format}, {layer.bytes_after / 1e6:.1f} MB"
            + (f" ({layer.reason})" if layer.reason else f" of {layer.bytes_before / 1e6:.1f}")
        )
    for layer in report.kept:
        if any(matches(pattern, layer.name) for pattern in HEADS):
            notes.left.append(f"{layer.name}: {layer.reason}")
    return True


def _round_activations(model: nn.Module, x_format: str | None) -> None:
    for layer in _fitting(model, x_format):
        layer.x_format = x_format


def _note_rounding(model: nn.Module, x_format: str | None, notes: _Notes) -> None:
    fitting = len(_fitting(model, x_format))
    left = len(_linear_layers(model)) - fitting
    if fitting:
        word = "take x as it is" if x_format is None else f"round x to {x_format}"
        notes.changed.append(f"{fitting} layers {word}")
    if left:
        notes.left.append(
            f"{left} layers take x as it is: int8 is for 2 and 4 bits and for k divisible by 32"
        )


def _linear_layers(model: nn.Module) -> list[Linear]:
    return [module for module in model.modules() if isinstance(module, Linear)]


def _fitting(model: nn.Module, x_format: str | None) -> list[Linear]:
    return [
        layer
        for layer in _linear_layers(model)
        if x_format is None or _takes_int8(layer.weight.format, layer.in_features)
    ]


def _takes_int8(format: Format, k: int) -> bool:
    return format.element.bits in (2, 4) and k % 32 == 0


def _decode_in_one_call(model: Any, notes: _Notes) -> None:
    native = load_native()
    if isinstance(native, str):
        notes.left.append(f"decoding: {native}")
        return
    stack = getattr(model, "model", model)
    if isinstance(stack.__dict__.get("forward"), FastDecoder):
        notes.left.append("decoding, which is one call already")
        return
    fast = FastDecoder(stack)
    reason = fast.refusal
    if reason is not None:
        notes.left.append(f"decoding, layer by layer: {reason}")
        return
    stack.forward = fast
    notes.changed.append(
        f"decoding: {len(stack.layers)} layers in one call, {native.isa}, {usable_threads()} of "
        f"{native.threads}"
    )
