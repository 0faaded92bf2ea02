"""Batches of one row times a matrix on a GPU, both in NVFP4, beside a read of as many bytes.

Reads that start before the one ahead has ended are the floor. A product copies its first weights so
early, and has to wait before it reads x: a read that waits for the one ahead is told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

import blockscale as bs
from bench.decoded import decoded
from bench.duel import FLOOR, Way, duel
from bench.measurements import Measurement
from bench.problems import PRODUCTS, Product
from bench.random_weights import random_weight
from bench.rivals.cuda_read import CudaMemory
from bench.timing import Call, Clock, copies
from blockscale.kernels.cuda.layout import fragments
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device

FORMAT = bs.NVFP4
WORK = "NVFP4 times NVFP4, one row in each batch"
SHAPES = tuple(each for each in PRODUCTS if each.verb == "matmul" and each.m == 1)
_TOLERANCE = 0.01  # sums in float32, a result in bfloat16


def problems(device: Device) -> list[Problem]:
    return [
        Problem(
            verb="matmul",
            m=1,
            n=each.n,
            k=each.k,
            groups=each.batch,
            x=str(Kind(FORMAT, canonical(FORMAT))),
            w=str(Kind(FORMAT, fragments(FORMAT))),
            out="bfloat16",
            device=device,
        )
        for each in SHAPES
    ]


def measure(clock: Clock, seconds: float) -> Iterator[Measurement]:
    for each in SHAPES:
        yield from _measure(each, clock, seconds)


def _measure(product: Product, clock: Clock, seconds: float) -> list[Measurement]:
    shape = (product.batch, product.n, product.k)
    w = random_weight(FORMAT, shape, fragments(FORMAT), clock.device)
    # One scale for a row, as activations have it.
    x = random_weight(
        FORMAT, (product.batch, 1, product.k), canonical(FORMAT), clock.device, seed=1
    )
    x = replace(x, tensor_scale=torch.ones(product.batch, 1, device=clock.device))
    count = copies(w.nbytes, clock.ring_bytes(3))

    def products() -> list[Call]:
        ring = [w, *(_copy(w) for _ in range(count - 1))]
        return [partial(bs.matmul, x, each) for each in ring]

    def reads(overlap: bool) -> list[Call]:
        size = w.codes.nbytes + w.scale.nbytes
        memory = [w.codes.new_zeros(size // 16 * 16).random_(0, 256) for _ in range(count)]
        return [CudaMemory(each, overlap).bind(each) for each in memory]

    ways = [
        Way(FORMAT.name.upper(), products, lambda: _error(x, w)),
        Way("a read that waits", partial(reads, overlap=False)),
        Way(FLOOR, partial(reads, overlap=True)),
    ]
    problem = f"n = {product.n}, k = {product.k}, {product.batch} batches"
    return duel(WORK, problem, ways, clock, seconds, beside=FLOOR, tolerance=_TOLERANCE)


def _copy(w: bs.QTensor) -> bs.QTensor:
    return replace(w, codes=w.codes.clone(), scale=w.scale.clone())


def _error(x: bs.QTensor, w: bs.QTensor) -> float:
    """The worst of the batches."""
    y = bs.matmul(x, w).double()
    errors = []
    for i in range(len(w)):
        wanted = x[i].dequantize().double() @ decoded(w[i]).double().T
        errors.append((y[i] - wanted).norm() / wanted.norm())
    return torch.stack(errors).max().item()
