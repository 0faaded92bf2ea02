"""A transformers decoder as csrc/decoder computes it.

Which layers are known, what is bound of them, and what has to stay as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from blockscale import ops
from blockscale.models.watch import Watch
from blockscale.nn.linear import Linear
from blockscale.tensor import QTensor
from blockscale.tensor.call import describe_call

# Layers that compute what csrc/decoder does: RMS norm, attention with rotary positions (and of
# Qwen3 norms of heads before them), RMS norm, gated product; a sum after each half.
_KNOWN = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_HEAD_NORMS = ("q_norm", "k_norm")
_GATED = ("gate_proj", "up_proj", "down_proj")
_ATTENTION = ("scaling", "head_dim", "is_causal", "sliding_window")  # fields that are bound
_RECORDER = "transformers.utils.output_capturing"


def why_not_fast(stack: Any) -> str | None:
    """Why tokens of this decoder cannot pass its layers in one call, as far as modules tell."""
    layers = getattr(stack, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        return f"{type(stack).__name__} has no layers of a decoder"
    for index, layer in enumerate(layers):
        reason = _why_not_layer(layer)
        if reason is not None:
            return f"layer {index}: {reason}"
    family = _family(layers[0])
    reason = (
        _why_not_class(stack, f"{family}Model")
        or _why_not_class(stack.norm, f"{family}RMSNorm")
        or _why_not_forward(stack.norm, "the last norm")
        or _why_not_forward(stack.rotary_emb, "the rotary embedding")
    )
    if reason is not None:
        return reason
    if stack.norm.weight.device.type != "cpu":
        return f"it is on {stack.norm.weight.device}: the native call is for CPUs"
    return None


def _why_not_layer(layer: Any) -> str | None:
    name = type(layer).__name__
    if name not in _KNOWN:
        return f"{name} is not among {', '.join(_KNOWN)}"
    for part, kind in _parts(layer):
        reason = _why_not_class(part, f"{_family(layer)}{kind}")
        if reason is not None:
            return reason
    plain = [linear for linear in _linears(layer) if type(linear) is not Linear]
    if plain:
        return f"a {type(plain[0]).__name__} is not a quantised bs.nn.Linear"
    if any(linear.is_sharded for linear in _linears(layer)):
        return "ranks share its weights"
    if type(layer.mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        return f"its gate is {type(layer.mlp.act_fn).__name__}"
    gate, up = layer.mlp.gate_proj, layer.mlp.up_proj
    if (gate.weight.format, gate.x_format) != (up.weight.format, up.x_format):
        return "gate and up have other formats"
    if not getattr(layer.self_attn, "is_causal", True):
        return "its tokens attend to those after them"
    window = _window(layer.self_attn)
    if window is not None:
        return f"its tokens attend to {window} tokens alone"
    for name, module in layer.named_modules():
        reason = _why_not_forward(module, name or "it")
        if reason is not None:
            return reason
    return None


def _family(layer: Any) -> str:
    return type(layer).__name__.removesuffix("DecoderLayer")


def _parts(layer: Any) -> Iterator[tuple[Any, str]]:
    """And what their classes are called after the family."""
    yield layer.self_attn, "Attention"
    yield layer.mlp, "MLP"
    for name in _NORMS:
        yield getattr(layer, name), "RMSNorm"
    for name in _head_norms(layer.self_attn):
        yield getattr(layer.self_attn, name), "RMSNorm"


def _why_not_class(module: nn.Module, known: str) -> str | None:
    """Others have fields of the same names, and compute something else of them."""
    name = type(module).__name__
    return None if name == known else f"{name} is not {known}"


def _why_not_forward(module: nn.Module, called: str) -> str | None:
    if _hooks(module):
        return f"{called} has forward hooks, which one call would pass by"
    if "forward" in module.__dict__:
        return f"{called} has a forward that is not its class's, which one call would pass by"
    return None


def _window(attention: Any) -> int | None:
    """Of sliding attention. Mistral has it in the config alone."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window  # type: ignore[no-any-return]
    return getattr(attention.config, "sliding_window", None)


def _hooks(module: nn.Module) -> list[Any]:
    """Without those that transformers leaves behind once somebody has asked for what layers give:
    calls that ask for it go the model's own way."""
    every = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return [each for each in every if getattr(each, "__module__", "") != _RECORDER]


def _linears(layer: Any) -> list[Any]:
    attention = [getattr(layer.self_attn, name, None) for name in _PROJECTIONS]
    return [*attention, *(getattr(layer.mlp, name, None) for name in _GATED)]


def bind(stack: Any) -> ops.DecoderCall | str:
    """A call for the weights that the layers have at this time; or why there is none."""
    reason = why_not_fast(stack)
    if reason is not None:
        return reason
    layers = [
        ops.DecoderLayer(_norms(layer), _products(layer), _shape(layer)) for layer in stack.layers
    ]
    return ops.bind_decoder(layers, _norm(stack.norm))


def _shape(layer: Any) -> ops.DecoderShape:
    attention, mlp = layer.self_attn, layer.mlp
    heads, hidden = _heads(attention), attention.q_proj.in_features
    return ops.DecoderShape(hidden, *heads, mlp.gate_proj.out_features, attention.scaling)


def heads_of(stack: Any) -> tuple[int, int, int]:
    """How many there are of queries, of keys, and their size."""
    return _heads(stack.layers[0].self_attn)


def _heads(attention: Any) -> tuple[int, int, int]:
    size = attention.head_dim
    return attention.q_proj.out_features // size, attention.k_proj.out_features // size, size


def watch_of(stack: Any) -> Watch:
    """Everything that a call has the address or the value of, and the modules on the way to it."""
    watch = Watch()
    watch.fields(stack.config, ["sliding_window"])
    _watch_norms(watch, stack, ["norm"])
    for module in watch.children(stack, ["rotary_emb", "layers"]):
        for each in module.modules():
            watch.forward(each)
    watch.forward(stack.norm)
    for layer in watch.every_child(stack.layers):
        _watch_norms(watch, layer, _NORMS)
        for attention in watch.children(layer, ["self_attn"]):
            watch.fields(attention, _ATTENTION)
            _watch_norms(watch, attention, _HEAD_NORMS)
            _watch_linears(watch, attention, _PROJECTIONS)
        for mlp in watch.children(layer, ["mlp"]):
            _watch_linears(watch, mlp, _GATED)
            watch.children(mlp, ["act_fn"])
    return watch


def _watch_norms(watch: Watch, module: nn.Module, names: Iterable[str]) -> None:
    for norm in watch.children(module, names):
        watch.parameter(norm, "weight")
        watch.fields(norm, ["variance_epsilon"])


def _watch_linears(watch: Watch, module: nn.Module, names: Iterable[str]) -> None:
    for linear in watch.children(module, names):
        watch.parameter(linear, "bias")
        if isinstance(linear, Linear):
            watch.packed(linear)


def _head_norms(attention: nn.Module) -> list[str]:
    return [name for name in _HEAD_NORMS if name in attention._modules]


def _norms(layer: Any) -> dict[str, ops.Norm]:
    attention, mlp = (_norm(getattr(layer, name)) for name in _NORMS)
    heads = _head_norms(layer.self_attn)
    of_heads = {name.removesuffix("_norm"): _norm(getattr(layer.self_attn, name)) for name in heads}
    return {"attention": attention, "mlp": mlp, **of_heads}


def _norm(module: Any) -> ops.Norm:
    return ops.Norm(module.weight.detach(), module.variance_epsilon)


def _products(layer: Any) -> dict[str, ops.MatmulCall]:
    q, k, v, o, gate, up, down = _linears(layer)
    single = {"q": q, "k": k, "v": v, "o": o, "down": down}
    return {name: _product(linear) for name, linear in single.items()} | {
        "gate_up": _product(gate, up)
    }


def _product(*linears: Linear) -> ops.MatmulCall:
    weights: list[QTensor] = [linear._prepared("weight")[0] for linear in linears]
    return describe_call(
        torch.empty(1, linears[0].in_features, dtype=torch.float32),
        weights,
        [linear.bias for linear in linears],
        group_sizes=None,
        activation="silu" if len(linears) == 2 else None,
        x_format=linears[0].x_format,
        out_dtype=torch.float32,
    )
