"""Tokens' way through a decoder, on a kernel that takes all of its layers at once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from blockscale.kernels.contract import Launch
from blockscale.kernels.cpu_arguments import Rows, matmul_arguments
from blockscale.kernels.decoder import (
    PRODUCTS,
    DecoderCall,
    DecoderShape,
    Layer,
    Norm,
    widest_before_keys,
)
from blockscale.kernels.matmul import cpu
from blockscale.kernels.native import native_configs
from blockscale.numerics import parse_activation
from blockscale.ops.choose import choose
from blockscale.ops.matmul import MatmulCall
from blockscale.ops.operand import as_groups
from blockscale.problem import Problem
from blockscale.runtime import native

# Of one row of x, and what x is multiplied as. Of float32 the native code takes `slices` where all
# products of a row can be made so.
_ALGORITHMS = {"stream": "float32", "slices": "float32", "int8": "int8"}
_LENGTHS = 64  # of prompts whose algorithms are remembered


class DecoderLayer(NamedTuple):
    """Of a Llama: norm, attention, norm, gated product."""

    norms: dict[str, Norm]  # by `kernels.decoder.NORMS`; those of heads may be missing
    products: dict[str, MatmulCall]  # by `kernels.decoder.PRODUCTS`, of one row of float32
    shape: DecoderShape


def bind_decoder(layers: Sequence[DecoderLayer], norm: Norm) -> DecoderCall | str:
    """A call for these weights, where they are; or why there is none."""
    shape = layers[0].shape
    bound, ways, kept, problems = [], set(), [], []
    for index, layer in enumerate(layers):
        reason = _why_not_shape(layer, norm, shape)
        if reason is not None:
            return f"layer {index}: {reason}"
        products = {}
        for name in PRODUCTS:
            call = layer.products[name]
            found = _bind(call)
            if isinstance(found, str):
                return f"{name}: {found}"
            products[name], way, parts = found
            ways.add(way)
            kept.append(parts)
            problems.append(call.problem())
        bound.append(Layer(layer.norms, products))
    first, last = (widest_before_keys(bound, index) for index in (0, len(bound) - 1))
    if first != last:
        return f"norms are of {first} and of {last}: keys and values would be so too"
    if len(ways) != 1:
        return f"products run as {' and '.join(sorted(ways))}, where one is needed for all"
    config = native_configs()[0]
    many = lru_cache(_LENGTHS)(partial(_algorithms, problems))
    return DecoderCall(bound, norm, shape, config, int8="int8" in ways, many=many, kept=kept)


def _why_not_shape(layer: DecoderLayer, last: Norm, shape: DecoderShape) -> str | None:
    """The native code has memory for one shape, and asks no weight for its own."""
    for name, its, first in zip(shape._fields, layer.shape, shape, strict=True):
        if its != first:
            return f"its {name} is {its}, where that of the first layer is {first}"
    for name, norm in [*layer.norms.items(), ("last", last)]:
        size = shape.head_dim if name in ("q", "k") else shape.hidden
        if norm.weight.shape != (size,):
            return f"a norm has {tuple(norm.weight.shape)} weights for {size} numbers"
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {
        "q": (queries, shape.hidden),
        "k": (keys, shape.hidden),
        "v": (keys, shape.hidden),
        "o": (shape.hidden, queries),
        "gate_up": (shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
    }
    for name, needed in sizes.items():
        for weight in layer.products[name].weights:
            if tuple(weight.shape) != needed:
                return f"{name} is {list(weight.shape)}, where {list(needed)} is needed"
    if shape.heads % shape.kv_heads:
        return f"{shape.heads} heads cannot share {shape.kv_heads} heads of keys evenly"
    return None


def _algorithms(problems: Sequence[Problem], tokens: int, dtype: str) -> tuple[str, ...] | None:
    """Of products with so many rows of x; problems: with one."""
    known: dict[Problem, str] = {}
    for each in problems:
        if each not in known:
            x = each.x if "@" in each.x else dtype  # what is rounded to int8 may be any
            config = choose(replace(each, m=tokens, x=x)).config
            if not isinstance(config, cpu.Config) or config.packs:
                return None
            if config.algorithm not in native.ALGORITHMS:
                return None
            known[each] = config.algorithm
    return tuple(known[each] for each in problems)


def _bind(call: MatmulCall) -> tuple[native.Matmul, str, Any] | str:
    call.validate()
    problem = call.problem()
    choice = choose(problem)
    config = choice.config
    if not isinstance(config, cpu.Config) or config.algorithm not in _ALGORITHMS:
        return f"{choice.kernel.NAME} with {config} runs, which takes one product at a time"
    if config.packs:
        return "its weight is not prepared"
    if "@" in problem.x and config.algorithm != "int8":
        return f"x is quantised to {problem.x_kind.format}, of which the call knows int8"
    weights = tuple(as_groups(weight).placed(Launch.alignment) for weight in call.weights)
    biases = [None if bias is None else bias.detach().contiguous() for bias in call.biases]
    stand_in = [torch.empty(1, size, dtype=torch.float32) for size in (problem.k, problem.n)]
    activation = parse_activation(problem.activation) if problem.gated else None
    one_row = (ctypes.c_int64 * 2)(0, 1)
    product = matmul_arguments(
        problem,
        config,
        Rows(stand_in[0], None, None),
        weights,
        biases,
        one_row,
        activation,
        stand_in[1],
    )
    return product, _ALGORITHMS[config.algorithm], (weights, biases)


__all__ = ["DecoderCall", "DecoderLayer", "DecoderShape", "Norm", "bind_decoder"]
