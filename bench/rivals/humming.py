"""Humming: CUDA kernels that are compiled for each shape and range of rows (humming-kernels).

It compiles about ninety kernels for a layer, one for each range of rows. Here it is given only the
ranges that are measured, with the choices that it makes for them itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

import blockscale as bs
from bench.decoded import decoded
from bench.random_weights import random_weight
from bench.rivals.contract import Prepared, Rival, import_failure
from bench.timing import Call
from blockscale.layouts import canonical

FORMATS = (bs.NVFP4, bs.MXFP4)
_TINY = (256, 256)  # of a layer whose weight is rearranged once, so that what does that is compiled
_SERIAL = "HUMMING_DISABLE_PARALLEL_BUILD"


@dataclass(frozen=True)
class Humming(Rival):
    format: bs.Format
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"humming {self.format.name}"

    def missing(self) -> str:
        # Imported, it starts processes that build what its wheel already has.
        os.environ[_SERIAL] = "1"
        try:
            return import_failure("humming.layer")
        finally:
            del os.environ[_SERIAL]

    def compilations(
        self, shapes: Sequence[tuple[int, int]], rows: Sequence[int]
    ) -> list[Callable[[], object]]:
        jobs: list[Callable[[], object]] = [partial(_layer, self.format, _TINY)]
        for shape in shapes:
            try:
                jobs += _kernels(self.format, shape, tuple(rows))
            except Exception:  # noqa: BLE001, S112 it says so again when it prepares this shape
                continue
        return jobs

    def prepare(self, w: Tensor) -> Layer:
        shape = tuple(w.shape)
        layer = _layer(self.format, shape)
        chosen = json.dumps(ranges(_choices(layer.humming_config), self.rows))
        return Layer(layer, chosen, _canonical(self.format, shape))


def ranges(choices: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    """Of [above, up to, choice]: those that some number of rows is in."""
    return [each for each in choices if any(each[0] < m <= each[1] for m in rows)]


@dataclass(frozen=True)
class Layer(Prepared):
    layer: Any
    chosen: str
    q: bs.QTensor

    @property
    def nbytes(self) -> int:
        return self.layer.weight.nbytes + self.layer.weight_scale.nbytes

    def copy(self) -> Layer:
        return Layer(deepcopy(self.layer), self.chosen, self.q)

    def decoded(self) -> Tensor:
        return decoded(self.q)

    def bind(self, x: Tensor) -> Call:
        return lambda: self.layer(x, tuning_config=self.chosen)


@lru_cache(maxsize=2)  # kept while a layer is made of it
def _canonical(format: bs.Format, shape: tuple[int, int]) -> bs.QTensor:
    return random_weight(format, shape, canonical(format), "cuda")


def _layer(format: bs.Format, shape: tuple[int, int]) -> Any:
    from humming.layer import HummingLayer

    q = _canonical(format, shape)
    n, k = shape
    layer = HummingLayer(n, k, weight_config=_schema(format), torch_dtype=torch.bfloat16).cuda()
    tensors = {"weight": q.codes, "weight_scale": q.scale}
    if q.tensor_scale is not None:
        tensors["weight_scale"] = q.scale.view(torch.float8_e4m3fn)
        tensors["weight_scale_2"] = q.tensor_scale.reshape(1)
    layer.load_from_tensors(tensors)
    layer.transform()
    return layer


def _schema(format: bs.Format) -> Any:
    from humming.schema.modelopt import ModeloptNvfp4WeightSchema
    from humming.schema.mxfp4 import Mxfp4WeightSchema

    return ModeloptNvfp4WeightSchema() if format == bs.NVFP4 else Mxfp4WeightSchema()


def _choices(config: Any) -> list[Any]:
    from humming.tune import get_heuristics_config

    return get_heuristics_config(config)


def _kernels(
    format: bs.Format, shape: tuple[int, int], rows: tuple[int, ...]
) -> list[Callable[[], object]]:
    from humming.kernel.humming import HummingKernel
    from humming.transform import prepare_layer_config

    schema = _schema(format).to_humming_schema(torch.bfloat16)
    config = prepare_layer_config(*shape, schema, torch_dtype=torch.bfloat16)
    return [
        partial(HummingKernel.prepare_kernels, config.to_str(), None, json.dumps([each]))
        for each in ranges(_choices(config), rows)
    ]
