"""Which calls of a transformers decoder pass all layers at once.

Those that generating makes: of one sequence, on from what the cache holds, and with nothing asked
for that lies between layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blockscale.models.cache_room import tokens_in

# What a call may be given beside tokens: these unless they are False, others if they are not set.
_NOT_FALSE = ("cache_position", "return_dict", "is_causal")
_RECORDED = ("output_attentions", "output_hidden_states")  # of layers, which one call passes by
_ATTENTIONS = ("eager", "sdpa", "flex_attention")  # that compute the same


def is_taken(
    stack: Any,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    inputs_embeds: Tensor | None = None,
    use_cache: bool | None = None,
    **rest: Any,
) -> bool:
    if (input_ids is None) == (inputs_embeds is None):
        return False  # the model itself says that it wants one of the two
    given = inputs_embeds if input_ids is None else input_ids
    if given is None or given.shape[0] != 1 or not given.shape[1]:
        return False
    if inputs_embeds is not None and not inputs_embeds.is_floating_point():
        return False
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or stack.training:
        return False
    config = stack.config
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
    layers = len(stack.layers)
    if config.num_hidden_layers < layers:  # a model passes as many of its layers
        return False
    length = tokens_in(past_key_values, layers)
    if length is None:
        return False
    if position_ids is not None and not _follow(position_ids, length, given.shape[1]):
        return False
    return attention_mask is None or _masks_nothing(attention_mask, length + given.shape[1])


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
