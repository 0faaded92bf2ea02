"""This library on a GPU. The weights are random bytes, placed as its kernels read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

import blockscale as bs
from bench.decoded import decoded
from bench.random_weights import random_weight
from bench.rivals.contract import Prepared, Rival
from bench.timing import Call
from blockscale import ops
from blockscale.kernels.cuda.layout import fragments
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device, device_of
from blockscale.runtime.cuda import Build, cubin, cuda_refusal, is_cached


@dataclass(frozen=True)
class BlockscaleCuda(Rival):
    format: bs.Format
    only_rows: tuple[int, ...] = ()
    role: str = "ours"

    @property
    def name(self) -> str:
        return self.format.name.upper()

    def missing(self) -> str:
        return cuda_refusal(_device()) or ""

    def compilations(
        self, shapes: Sequence[tuple[int, int]], rows: Sequence[int]
    ) -> list[Callable[[], object]]:
        wanted = [m for m in rows if not self.only_rows or m in self.only_rows]
        problems = [product(self.format, m, n, k) for n, k in shapes for m in wanted]
        return compilations_of([*problems, *(decoding(self.format, n, k) for n, k in shapes)])

    def prepare(self, w: Tensor) -> Placed:
        place = fragments(self.format)
        if place is None:
            raise ValueError(f"no kernel for GPUs reads {self.format}")
        return Placed(random_weight(self.format, tuple(w.shape), place, w.device))


def product(format: bs.Format, m: int, n: int, k: int) -> Problem:
    """x in bfloat16 times a prepared weight."""
    return Problem(
        verb="matmul",
        m=m,
        n=n,
        k=k,
        x="bfloat16",
        w=str(Kind(format, fragments(format))),
        out="bfloat16",
        device=_device(),
    )


def decoding(format: bs.Format, n: int, k: int) -> Problem:
    """What the check asks for."""
    return Problem(
        verb="dequantize",
        m=n,
        n=0,
        k=k,
        x="float32",
        w=str(Kind(format, fragments(format))),
        out="float32",
        device=_device(),
    )


def compilations_of(problems: Sequence[Problem]) -> list[Callable[[], object]]:
    """One for each kernel that is not on the disk."""
    builds: dict[Build, None] = {}
    for problem in problems:
        builds.update(dict.fromkeys(ops.builds(problem)))
    target = _device().arch
    return [partial(cubin, build, target) for build in builds if not is_cached(build, target)]


def _device() -> Device:
    return device_of(torch.device("cuda", 0))


@dataclass(frozen=True)
class Placed(Prepared):
    q: bs.QTensor

    @property
    def nbytes(self) -> int:
        return self.q.codes.nbytes + self.q.scale.nbytes

    def copy(self) -> Placed:
        return Placed(replace(self.q, codes=self.q.codes.clone(), scale=self.q.scale.clone()))

    def decoded(self) -> Tensor:
        return decoded(self.q)

    def bind(self, x: Tensor) -> Call:
        return lambda: bs.matmul(x, self.q)

    def kernel(self, x: Tensor) -> str:
        kernel, config, _ = ops.choose(product(self.q.format, len(x), *self.q.shape))
        return f"{kernel.NAME}: {config}"
