"""All layers of a decoder for some tokens, in one call of the native CPU library.

At one token a layer's products take some hundred microseconds, and what Python and torch do between
them (norms, rotary positions, attention to the cache, sums) as much again, however many threads
there are; of a prompt it is a third to a half. csrc/decoder has these steps in C++, on float32
between layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor

from blockscale.kernels.native import NativeConfig, call_native, pointer
from blockscale.problem import dtype_name
from blockscale.runtime import native

PRODUCTS = ("q", "k", "v", "o", "gate_up", "down")
NORMS = ("attention", "mlp", "q", "k")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of x


class Norm(NamedTuple):
    weight: Tensor  # [hidden], or [head_dim]
    epsilon: float

    @property
    def native(self) -> native.RmsNorm:
        dtype = native.DTYPES[dtype_name(self.weight.dtype)]
        return native.RmsNorm(pointer(self.weight), dtype, self.epsilon)


class Layer(NamedTuple):
    norms: dict[str, Norm]  # by the names in NORMS; those of heads may be missing
    products: dict[str, native.Matmul]  # by the names in PRODUCTS


# Tokens, more than one, and the dtype of x -> how each product of each layer is made of them; None
# where the native library does not make them.
Algorithms = Callable[[int, str], Sequence[str] | None]


class DecoderShape(NamedTuple):
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    attention_scale: float


class Caches(Protocol):
    """Keys and values of all layers, [kv_heads, head_stride], with room for more tokens."""

    @property
    def addresses(self) -> Sequence[int]: ...  # of each layer's keys, and of its values

    @property
    def head_stride(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...


def _widest(norms: Iterable[Norm]) -> torch.dtype:
    return reduce(torch.promote_types, (each.weight.dtype for each in norms))


def widest_before_keys(layers: Sequence[Layer], index: int) -> torch.dtype:
    """Of the norms that keys and values of a layer come after: torch keeps them as no narrower."""
    own = {name: each for name, each in layers[index].norms.items() if name != "mlp"}
    before = [each for layer in layers[:index] for each in layer.norms.values()]
    return _widest([*before, *own.values()])


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
        many: Algorithms,
        kept: Any,
    ) -> None:
        self._layers = (native.DecoderLayer * len(layers))()
        for place, layer in zip(self._layers, layers, strict=True):
            for name, each in layer.norms.items():
                setattr(place, f"{name}_norm", each.native)
            for name, product in layer.products.items():
                setattr(place, name, native.DecoderProduct(product))
        self._config, self._many, self._kept = config, many, (norm, kept)
        self._dtype = _widest([norm, *(each for layer in layers for each in layer.norms.values())])
        self._cache_dtype = widest_before_keys(layers, 0)
        self._algorithms: Sequence[str] | None = None  # that the layers have
        self._caches: Callable[[], Caches | None] = lambda: None  # whose addresses the layers have
        # Two threads may decode with one model; what a call is made of is there once.
        self._lock = Lock()
        self._call = native.Decode(
            layers=ctypes.addressof(self._layers),
            count=len(self._layers),
            norm=norm.native,
            **shape._asdict(),
            int8=int(int8),
            isa=native.ISAS.index(config.isa),
        )

    def result_dtype(self, x: torch.dtype) -> torch.dtype:
        """That torch would give the product of normed x and the norms' weights."""
        return torch.promote_types(x, self._dtype)

    def cache_dtype(self, x: torch.dtype) -> torch.dtype:
        """That torch would give keys and values: the model itself may go on with them."""
        return torch.promote_types(x, self._cache_dtype)

    def takes(self, x: Tensor) -> bool:  # [tokens, hidden]
        """Whether it is for rows of this width and dtype, and for so many at a time."""
        tokens, width = x.shape
        if width != self._call.hidden or x.dtype not in _DTYPES:
            return False
        return tokens == 1 or self._many(tokens, dtype_name(x.dtype)) is not None

    def __call__(
        self,
        x: Tensor,  # [tokens, hidden]
        position: int,
        rotation: Tensor,  # [tokens, 2, head_dim] float32: cosines, sines
        caches: Caches,
        out: Tensor,  # like x
    ) -> None:
        tokens = len(x)
        with self._lock:
            if caches is not self._caches():
                self._place(caches)
            if tokens > 1:
                self._take(self._many(tokens, dtype_name(x.dtype)))
            call = self._call
            call.position, call.tokens = position, tokens
            call.rotation = rotation.data_ptr()
            call.x, call.out = x.data_ptr(), out.data_ptr()
            call.x_dtype = native.DTYPES[dtype_name(x.dtype)]
            call.threads = self._config.threads
            call_native("bs_decode", call)

    def _take(self, algorithms: Sequence[str] | None) -> None:
        if algorithms is None:
            raise ValueError("these tokens are for one call each: ask `takes` first")
        if algorithms == self._algorithms:
            return
        each = iter(algorithms)
        for layer in self._layers:
            for name in PRODUCTS:
                getattr(layer, name).algorithm = native.ALGORITHMS[next(each)]
        self._algorithms = algorithms

    def _place(self, caches: Caches) -> None:
        addresses, head_stride = iter(caches.addresses), caches.head_stride
        for layer, keys, values in zip(self._layers, addresses, addresses, strict=True):
            layer.keys, layer.values, layer.head_stride = keys, values, head_stride
        self._call.cache_dtype = native.DTYPES[dtype_name(caches.dtype)]
        self._caches = ref(caches)
