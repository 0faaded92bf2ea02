"""All layers of a decoder for one token, in one call of the native CPU library.

At one token a layer's products take some hundred microseconds, and what Python and torch do between
them (norms, rotary positions, attention to the cache, sums) as much again, however many threads
there are. csrc/decoder has these steps in C++, on float32 between layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from blockscale.kernels.native import NativeConfig, call_native, pointer
from blockscale.problem import dtype_name
from blockscale.runtime import native

PRODUCTS = ("q", "k", "v", "o", "gate_up", "down")


class Norm(NamedTuple):
    weight: Tensor  # [hidden]
    epsilon: float

    @property
    def native(self) -> native.RmsNorm:
        dtype = native.DTYPES[dtype_name(self.weight.dtype)]
        return native.RmsNorm(pointer(self.weight), dtype, self.epsilon)


class Layer(NamedTuple):
    attention_norm: Norm
    mlp_norm: Norm
    products: dict[str, native.Matmul]  # by the names in PRODUCTS


class DecoderShape(NamedTuple):
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    attention_scale: float


class CacheRows(NamedTuple):
    """Keys and values of a layer, [kv_heads, room, head_dim], with room for one more token."""

    keys: Tensor
    values: Tensor


class DecoderCall:
    """Borrows weights, which `kept` keeps alive."""

    def __init__(
        self,
        layers: Sequence[Layer],
        norm: Norm,
        shape: DecoderShape,
        config: NativeConfig,
        *,
        int8: bool,
        kept: Any,
    ) -> None:
        self._layers = (native.DecoderLayer * len(layers))()
        for place, layer in zip(self._layers, layers, strict=True):
            place.attention_norm, place.mlp_norm = (
                layer.attention_norm.native,
                layer.mlp_norm.native,
            )
            for name, product in layer.products.items():
                setattr(place, name, product)
        self._norm, self._shape, self._config, self._int8 = norm, shape, config, int8
        self._kept = kept

    def __call__(
        self,
        x: Tensor,  # [hidden]
        position: int,
        cos: Tensor,  # [head_dim] float32
        sin: Tensor,
        caches: Sequence[CacheRows],
        out: Tensor,  # [hidden]
    ) -> None:
        for place, cache in zip(self._layers, caches, strict=True):
            place.keys, place.values = cache.keys.data_ptr(), cache.values.data_ptr()
            place.head_stride = cache.keys.stride(0)
        shape = self._shape
        call = native.Decode(
            ctypes.addressof(self._layers),
            len(self._layers),
            self._norm.native,
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.intermediate,
            position,
            pointer(cos),
            pointer(sin),
            shape.attention_scale,
            int(self._int8),
            pointer(x),
            pointer(out),
            native.DTYPES[dtype_name(x.dtype)],
            native.DTYPES[dtype_name(caches[0].keys.dtype)],
            native.ISAS.index(self._config.isa),
            self._config.threads,
        )
        call_native("bs_decode", call)
