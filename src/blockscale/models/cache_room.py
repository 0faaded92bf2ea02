"""Keys and values of a transformers cache, in memory with room for more tokens.

A `DynamicCache` concatenates the keys and values of all tokens for each new one. Here they move to
one piece of memory for all layers, once, and a token is written behind the others. Its layers are
given views, made by two calls of torch for all of them: slicing one by one takes as long as some
products do.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor

_ROOM = 256  # tokens; at least, and half as many as there are


class CacheRoom:
    """Of the layers of one cache, which show the tokens that are in it."""

    def __init__(self, layers: Sequence[Any], more: int) -> None:
        first: Tensor = layers[0].keys
        _, heads, tokens, size = first.shape
        room = tokens + more + max(_ROOM, tokens // 2)
        # Keys of the first layer, values of the first layer, keys of the second, and so on.
        self._memory = first.new_empty(2 * len(layers), 1, heads, room, size)
        shown = self._beginnings(tokens)
        for i, layer in enumerate(layers):
            shown[2 * i].copy_(layer.keys)
            shown[2 * i + 1].copy_(layer.values)
            # What the layer held can be freed before the next one's is copied.
            layer.keys, layer.values = shown[2 * i : 2 * i + 2]
        self._shown = shown

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a cache finds room of its own."""
        return

    @staticmethod
    def shown_by(cache: Any) -> CacheRoom | None:
        """The cache's, if its layers show what they were given. Those that were cropped do not:
        somebody may have kept what they showed before."""
        room: CacheRoom | None = getattr(cache, "_blockscale_room", None)
        return room if room is not None and room._is_shown_by(cache.layers) else None

    @staticmethod
    def for_more(cache: Any, tokens: int) -> CacheRoom:
        room = CacheRoom.shown_by(cache)
        if room is None or room.tokens + tokens > room._memory.shape[3]:
            room = cache._blockscale_room = CacheRoom(cache.layers, tokens)
        return room

    @property
    def tokens(self) -> int:
        return self._shown[0].shape[2]

    @property
    def dtype(self) -> torch.dtype:
        return self._memory.dtype

    @property
    def head_stride(self) -> int:
        """Numbers from one head's first to the next one's."""
        return self._memory.stride(2)

    @property
    def addresses(self) -> list[int]:
        """Of the keys and the values of each layer, in turns."""
        step = self._memory.stride(0) * self._memory.element_size()
        first = self._memory.data_ptr()
        return [first + i * step for i in range(len(self._memory))]

    def show_more(self, tokens: int, layers: Sequence[Any]) -> None:
        """That were written behind the others."""
        self._shown = self._beginnings(self.tokens + tokens)
        each = iter(self._shown)
        for layer, keys, values in zip(layers, each, each, strict=True):
            layer.keys, layer.values = keys, values

    def _beginnings(self, tokens: int) -> tuple[Tensor, ...]:
        return self._memory.narrow(3, 0, tokens).unbind(0)

    def _is_shown_by(self, layers: Sequence[Any]) -> bool:
        return all(map(is_, self._shown, (x for each in layers for x in (each.keys, each.values))))


def tokens_in(cache: Any, layers: int) -> int | None:
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


def _are_alike(layers: Sequence[Any]) -> bool:
    """Keys and values [1, kv_heads, tokens, head_dim] of every token, in each of them."""
    if not all(each.is_initialized for each in layers):
        return False
    shapes = {each.shape for layer in layers for each in (layer.keys, layer.values)}
    return len(shapes) == 1 and shapes.pop()[0] == 1


def begin(cache: Any, none: Tensor) -> None:  # [1, kv_heads, 0, head_dim]
    """Gives layers of a new cache keys and values of no tokens."""
    for layer in cache.layers:
        if not layer.is_initialized:
            layer.lazy_initialization(none, none)
            layer.keys, layer.values = none, none
