"""The decoder of a transformers model, whose tokens pass all layers in one native call.

`FastDecoder` stands before the decoder's own `forward`. It takes what generating asks for: tokens
of one sequence, on a CPU, without gradients, with a cache. A prompt is many tokens and goes in
pieces. Everything else goes the model's own way.

Keys and values stay where transformers keeps them, in the layers of a `DynamicCache`, which show
memory with room for more tokens (cache_room.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from blockscale import ops
from blockscale.models.cache_room import CacheRoom
from blockscale.models.rotation import Rotation
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
# What a call may be given beside tokens: these unless they are False, others if they are not set.
_NOT_FALSE = ("cache_position", "return_dict", "is_causal")
_RECORDED = ("output_attentions", "output_hidden_states")  # of layers, which one call passes by
_HOOKED = "has forward hooks, which one call would pass by"
_ATTENTIONS = ("eager", "sdpa", "flex_attention")  # that compute the same
_RECORDER = "transformers.utils.output_capturing"
_PIECE = 512  # tokens of a prompt, at most: their numbers stay in the cache from product to product


def why_not_fast(stack: Any) -> str | None:
    """Why tokens of this decoder cannot pass its layers in one call, as far as modules tell."""
    layers = getattr(stack, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        return f"{type(stack).__name__} has no layers of a decoder"
    for index, layer in enumerate(layers):
        reason = _why_not_layer(layer)
        if reason is not None:
            return f"layer {index}: {reason}"
    if _hooks(stack.norm):
        return f"the last norm {_HOOKED}"
    if stack.norm.weight.device.type != "cpu":
        return f"it is on {stack.norm.weight.device}: the native call is for CPUs"
    return None


def _why_not_layer(layer: Any) -> str | None:
    name = type(layer).__name__
    if name not in _KNOWN:
        return f"{name} is not among {', '.join(_KNOWN)}"
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
    if any(_hooks(module) for module in layer.modules()):
        return f"it {_HOOKED}"
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


class FastDecoder:
    """Takes the place of `stack.forward`."""

    def __init__(self, stack: Any) -> None:
        self._stack = stack
        self._forward: Callable[..., Any] = stack.forward
        self._call: ops.DecoderCall | None = None
        self._watch: Watch | None = None  # of what the call is bound to
        self._rotation = Rotation()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args or not self._takes(**kwargs):
            return self._forward(*args, **kwargs)
        call = self._bound()
        if call is None:
            return self._forward(**kwargs)
        return self._decode(call, kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Copies find their own weights."""
        return {**self.__dict__, "_call": None, "_watch": None}

    @property
    def refusal(self) -> str | None:
        """Why tokens go the model's own way."""
        reason = why_not_fast(self._stack)
        if reason is None:
            bound = self._bind()
            reason = bound if isinstance(bound, str) else None
        return reason

    def _takes(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **rest: Any,
    ) -> bool:
        given = inputs_embeds if input_ids is None else input_ids
        if given is None or given.shape[0] != 1 or not given.shape[1]:
            return False
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self._stack.training:
            return False
        config = self._stack.config
        if any(_is_asked(name, value) for name, value in rest.items()):
            return False
        if any(getattr(config, name, False) for name in _RECORDED):
            return False
        if any(getattr(config, name, None) is False for name in _NOT_FALSE):
            return False
        if config._attn_implementation not in _ATTENTIONS:
            return False
        if not (config.use_cache if use_cache is None else use_cache):
            return False
        length = _tokens_in(past_key_values, len(self._stack.layers))
        if length is None:
            return False
        if position_ids is not None and not _follow(position_ids, length, given.shape[1]):
            return False
        return attention_mask is None or _masks_nothing(attention_mask, length + given.shape[1])

    def _bound(self) -> ops.DecoderCall | None:
        """The call for the weights that the layers have at this time."""
        if self._watch is None or not self._watch.unchanged():
            reason = why_not_fast(self._stack)
            bound = reason or self._bind()
            self._call = None if isinstance(bound, str) else bound
            self._watch = _watch(self._stack)  # after binding, which packs weights
        return self._call

    def _bind(self) -> ops.DecoderCall | str:
        stack = self._stack
        layers = [
            ops.DecoderLayer(
                _norms(layer),
                _products(layer),
            )
            for layer in stack.layers
        ]
        first = stack.layers[0]
        head_dim = first.self_attn.head_dim
        shape = ops.DecoderShape(
            first.self_attn.q_proj.in_features,
            first.self_attn.q_proj.out_features // head_dim,
            first.self_attn.k_proj.out_features // head_dim,
            head_dim,
            first.mlp.gate_proj.out_features,
            first.self_attn.scaling,
        )
        return ops.bind_decoder(layers, _norm(stack.norm), shape)

    def _decode(self, call: ops.DecoderCall, asked: dict[str, Any]) -> Any:
        from transformers import DynamicCache
        from transformers.modeling_outputs import BaseModelOutputWithPast

        x = asked.get("inputs_embeds")
        x = (self._stack.embed_tokens(asked["input_ids"]) if x is None else x).contiguous()
        pieces = x[0].split(_PIECE)
        if not all(call.takes(len(piece), x.dtype) for piece in pieces):
            return self._forward(**asked)
        cache = asked.get("past_key_values")
        if cache is None:
            cache = DynamicCache(config=self._stack.config)
            if _tokens_in(cache, len(self._stack.layers)) is None:
                return self._forward(**asked)
        self._begin(cache, x)
        out = torch.empty_like(x)
        room = CacheRoom.for_more(cache, x.shape[1])
        # Of the whole prompt: some kinds turn by what its length is.
        turns = self._rotation.at(room.tokens, x.shape[1], self._stack.rotary_emb)
        position = room.tokens
        for piece, turn, result in zip(
            pieces, turns.split(_PIECE), out[0].split(_PIECE), strict=True
        ):
            call(piece, position, turn, room, result)
            position += len(piece)
        room.show_more(x.shape[1], cache.layers)
        return BaseModelOutputWithPast(last_hidden_state=out, past_key_values=cache)

    def _begin(self, cache: Any, x: Tensor) -> None:
        """Gives layers of a new cache keys and values of no tokens."""
        attention = self._stack.layers[0].self_attn
        heads = attention.k_proj.out_features // attention.head_dim
        for layer in cache.layers:
            if not layer.is_initialized:
                none = x.new_empty(1, heads, 0, attention.head_dim)
                layer.lazy_initialization(none, none)
                layer.keys, layer.values = none, none


def _tokens_in(cache: Any, layers: int) -> int | None:
    """Of a cache that can have room for more, with so many layers; None, of another."""
    if cache is None:
        return 0
    if len(getattr(cache, "layers", ())) != layers or getattr(cache, "offloading", False):
        return None
    if CacheRoom.shown_by(cache) is None:
        if any(type(each).__name__ != "DynamicLayer" for each in cache.layers):
            return None
        if not any(each.is_initialized for each in cache.layers):
            return 0
        if not _are_alike(cache.layers):
            return None
    return int(cache.layers[0].keys.shape[-2])


def _is_asked(name: str, value: Any) -> bool:
    """Whether a call would have to do more for it, or something else."""
    if name in _NOT_FALSE:
        return value is False
    return value is not None and value is not False


def _masks_nothing(mask: Any, tokens: int) -> bool:
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[1] < tokens:
        return False
    return bool(mask.all().item())


def _follow(position_ids: Tensor, length: int, tokens: int) -> bool:
    """Whether these are the next positions."""
    if position_ids.shape != (1, tokens):
        return False
    if tokens == 1:
        return int(position_ids.item()) == length
    return torch.equal(position_ids[0], torch.arange(length, length + tokens, device="cpu"))


def _watch(stack: Any) -> Watch:
    """Everything that a call has the address of, and the modules on the way to it."""
    watch = Watch()
    for norm in watch.children(stack, ["norm"]):
        watch.parameter(norm, "weight")
    for layer in watch.children(stack.layers, list(stack.layers._modules)):
        for norm in watch.children(layer, _NORMS):
            watch.parameter(norm, "weight")
        for part, names in (("self_attn", _PROJECTIONS), ("mlp", _GATED)):
            for module in watch.children(layer, [part]):
                for norm in watch.children(module, _HEAD_NORMS):
                    watch.parameter(norm, "weight")
                for linear in watch.children(module, names):
                    watch.parameter(linear, "bias")
                    if isinstance(linear, Linear):
                        watch.packed(linear)
    for module in (stack.norm, *stack.layers.modules()):
        watch.hooks(module)
    return watch


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


def _are_alike(layers: Sequence[Any]) -> bool:
    """Keys and values [1, kv_heads, tokens, head_dim] of every token, in each of them."""
    if not all(each.is_initialized for each in layers):
        return False
    shapes = {each.shape for layer in layers for each in (layer.keys, layer.values)}
    return len(shapes) == 1 and shapes.pop()[0] == 1
