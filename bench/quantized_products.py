"""Products of many rows on a GPU with both operands quantised, beside torch's in bfloat16.

The contest's GEMMs, gated dual GEMMs and grouped GEMMs in NVFP4, and cubes in MXFP8. Rows of x come
quantised; what a kernel does with them first is part of its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

import blockscale as bs
from bench.decoded import decoded
from bench.duel import Way, duel
from bench.experts import grouped_mm
from bench.measurements import Measurement
from bench.problems import PRODUCTS, Product
from bench.random_weights import random_weight
from bench.results import BASELINE
from bench.timing import Call, Clock, copies
from blockscale.kernels.cuda.layout import fragments
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device

WORK = "Both operands quantised, many rows"
SHAPES = tuple(each for each in PRODUCTS if each.m > 1)
_CHECKED = 64  # rows of x
_TOLERANCE = 0.01  # sums in float32, a result in bfloat16; gate times up is off by twice as much


def format_of(product: Product) -> bs.Format:
    return bs.MXFP8 if "MXFP8" in product.source else bs.NVFP4


def problems(device: Device) -> list[Problem]:
    return [_problem(each, device) for each in SHAPES]


def _problem(product: Product, device: Device) -> Problem:
    format, gated = format_of(product), product.verb == "gated_matmul"
    return Problem(
        verb=product.verb,
        m=product.m,
        n=product.n,
        k=product.k,
        groups=len(product.groups) or 1,
        ragged=bool(product.groups),
        gated=gated,
        activation="silu" if gated else "",
        x=str(Kind(format, canonical(format))),
        w=str(Kind(format, fragments(format))),
        out="bfloat16",
        device=device,
    )


def measure(clock: Clock, seconds: float) -> Iterator[Measurement]:
    for product in SHAPES:
        yield from _measure(product, clock, seconds)


def _measure(product: Product, clock: Clock, seconds: float) -> list[Measurement]:
    format, device = format_of(product), clock.device
    sizes = torch.tensor(product.groups, dtype=torch.int32, device=device)
    x = random_weight(format, (product.m, product.k), canonical(format), device, seed=9)
    if format.has_tensor_scale:  # one for a row, as activations have it
        x = replace(x, tensor_scale=torch.ones(product.m, device=device))
    weights = _weights(product, format, device)
    ring = copies(sum(each.nbytes for each in weights), clock.ring_bytes(3))
    plain_x, plain = x.dequantize(torch.bfloat16), [_plain(each) for each in weights]
    plain_ring = copies(sum(each.nbytes for each in plain), clock.ring_bytes(3))

    def ours() -> list[Call]:
        every = [weights, *([_copy(each) for each in weights] for _ in range(ring - 1))]
        return [partial(_product, product, x, each, sizes) for each in every]

    def torchs() -> list[Call]:
        ends = sizes.cumsum(0, dtype=torch.int32)
        every = [plain, *([each.clone() for each in plain] for _ in range(plain_ring - 1))]
        return [partial(_plain_product, product, plain_x, each, ends) for each in every]

    ways = [
        Way(format.name.upper(), ours, lambda: _error(product, x, weights, sizes)),
        Way(BASELINE, torchs),
    ]
    return duel(WORK, _described(product), ways, clock, seconds, beside=BASELINE,
                tolerance=_TOLERANCE * len(weights))  # fmt: skip


def _described(product: Product) -> str:
    kind = {"matmul": "GEMM", "gated_matmul": "gated dual GEMM", "grouped_matmul": "grouped GEMM"}
    rows = f"m = {product.m}" + (f" in {len(product.groups)} groups" if product.groups else "")
    return f"{kind[product.verb]}, {rows}, n = {product.n}, k = {product.k}"


def _weights(product: Product, format: bs.Format, device: torch.device) -> list[bs.QTensor]:
    groups = (len(product.groups),) if product.groups else ()
    branches = 2 if product.verb == "gated_matmul" else 1
    place = fragments(format)
    if place is None:
        raise ValueError(f"no kernel for GPUs reads {format}")
    return [
        random_weight(format, (*groups, product.n, product.k), place, device, seed)
        for seed in range(branches)
    ]


def _product(
    product: Product, x: bs.QTensor, weights: Sequence[bs.QTensor], sizes: Tensor
) -> Tensor:
    if product.verb == "gated_matmul":
        return bs.gated_matmul(x, *weights)
    if product.groups:
        return bs.grouped_matmul(x, *weights, sizes)
    return bs.matmul(x, *weights)


def _plain_product(product: Product, x: Tensor, weights: Sequence[Tensor], ends: Tensor) -> Tensor:
    if product.verb == "gated_matmul":
        gate, up = weights
        return silu(linear(x, gate)) * linear(x, up)
    if product.groups:
        return grouped_mm(x, weights[0].transpose(1, 2), ends)
    return linear(x, weights[0])


def _plain(q: bs.QTensor) -> Tensor:
    return q.dequantize(torch.bfloat16)


def _copy(w: bs.QTensor) -> bs.QTensor:
    return replace(w, codes=w.codes.clone(), scale=w.scale.clone()).freeze()


def _error(product: Product, x: bs.QTensor, weights: Sequence[bs.QTensor], sizes: Tensor) -> float:
    """Of the first rows, of the first group where there are some."""
    rows = min(_CHECKED, product.groups[0] if product.groups else product.m)
    y = _product(product, x, weights, sizes)[:rows].double()
    exact_x = x[:rows].dequantize(torch.float32).double()
    matrices = [each[0] if product.groups else each for each in weights]
    results = [exact_x @ decoded(each).double().T for each in matrices]
    wanted = results[0] if len(results) == 1 else silu(results[0]) * results[1]
    return ((y - wanted).norm() / wanted.norm()).item()
