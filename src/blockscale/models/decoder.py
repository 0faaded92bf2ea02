"""The decoder of a transformers model, whose tokens pass all layers in one native call.

`FastDecoder` stands before the decoder's own `forward`. It takes what generating asks for: tokens
of one sequence, on a CPU, without gradients, with a cache (decoder_calls.py), of decoders that the
native code knows (decoder_layers.py). A prompt is many tokens and goes in pieces. Everything else
goes the model's own way.

Keys and values stay where transformers keeps them, in the layers of a `DynamicCache`, which show
memory with room for more tokens (cache_room.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from blockscale import ops
from blockscale.models.cache_room import CacheRoom, begin, tokens_in
from blockscale.models.decoder_calls import is_taken
from blockscale.models.decoder_layers import bind, heads_of, watch_of
from blockscale.models.rotation import Rotation
from blockscale.models.watch import Watch

_PIECE = 512  # tokens of a prompt, at most: their numbers stay in the cache from product to product


class FastDecoder:
    """Takes the place of `stack.forward`."""

    def __init__(self, stack: Any) -> None:
        self._stack = stack
        self._forward: Callable[..., Any] = stack.forward
        self._call: ops.DecoderCall | None = None
        self._watch: Watch | None = None  # of what the call is bound to
        self._rotation = Rotation()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args or not is_taken(self._stack, **kwargs):
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
        if self._stack.__dict__.get("forward", self) is not self:
            name = type(self._stack).__name__
            return f"{name} has a forward that is not its class's, which one call would pass by"
        bound = bind(self._stack)
        return bound if isinstance(bound, str) else None

    def _bound(self) -> ops.DecoderCall | None:
        """The call for the weights that the layers have at this time."""
        if self._watch is None or not self._watch.unchanged():
            bound = bind(self._stack)
            self._call = None if isinstance(bound, str) else bound
            self._watch = watch_of(self._stack)  # after binding, which packs weights
        return self._call

    def _decode(self, call: ops.DecoderCall, asked: dict[str, Any]) -> Any:
        from transformers import DynamicCache
        from transformers.modeling_outputs import BaseModelOutputWithPast

        stack, x, cache = self._stack, asked.get("inputs_embeds"), asked.get("past_key_values")
        x = stack.embed_tokens(asked["input_ids"]) if x is None else x
        cache_dtype = call.cache_dtype(x.dtype)
        x = x.to(call.result_dtype(x.dtype)).contiguous()
        pieces, tokens = x[0].split(_PIECE), x.shape[1]
        takes = all(call.takes(piece) for piece in pieces)
        if cache is None:
            cache = DynamicCache(config=stack.config)
            takes = takes and tokens_in(cache, len(stack.layers)) is not None
        if not takes:
            return self._forward(**asked)
        _, heads, size = heads_of(stack)
        begin(cache, x.new_empty(1, heads, 0, size, dtype=cache_dtype))
        room = CacheRoom.for_more(cache, tokens)
        # Of the whole prompt: some kinds turn by what its length is.
        position, turns = room.tokens, self._rotation.at(room.tokens, tokens, stack.rotary_emb)
        out = torch.empty_like(x)
        results = out[0].split(_PIECE)
        for piece, turn, result in zip(pieces, turns.split(_PIECE), results, strict=True):
            call(piece, position, turn, room, result)
            position += len(piece)
        room.show_more(tokens, cache.layers)
        return BaseModelOutputWithPast(last_hidden_state=out, past_key_values=cache)
