"""A product by the Triton kernels of `device`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.contract import Launch, Parts
from blockscale.kernels.matmul.portable.config import Config, variant
from blockscale.numerics import parse_activation
from blockscale.problem import Problem

_KERNELS = "blockscale.kernels.matmul.portable.device.product"


class Product(Launch):
    """On some weights. Triton compiles at the first call, keeps what it compiled on disk, and looks
    up by the tensors' alignment what to launch: no address needs to be a multiple of anything."""

    def __init__(self, problem: Problem, config: Config, weights: tuple[Parts, ...]) -> None:
        self._problem, self._config = problem, config
        self.alignment = 4 if problem.w_kind.format.scale.bits == 32 else 1
        self._weights = [self._readable(part) for part in weights]
        self._variant = variant(problem, config)

    def __call__(
        self,
        x: Tensor | Parts,  # [rows, k]
        biases: tuple[Tensor | None, ...],  # [groups, n]
        group_sizes: Tensor | None,
        out: Tensor,  # [rows, n]
    ) -> None:
        problem, config = self._problem, self._config
        kernels: Any = import_module(_KERNELS)
        rows, (gate, up) = _rows_of(x), self._operands(biases)
        sizes = None if group_sizes is None else group_sizes.contiguous()
        partial = None
        if config.splits > 1:
            shape = config.splits, len(self._weights), problem.rows, problem.n
            partial = torch.empty(shape, dtype=torch.float32, device=out.device)
        m, n, k, groups, every = problem.m, problem.n, problem.k, problem.groups, problem.rows
        activation = parse_activation(problem.activation) if problem.gated else None
        last = *((activation.alpha, activation.limit) if activation else (0.0, 0.0)), self._variant
        grid = tiles(problem, config), 1 if problem.ragged else groups, config.splits
        with torch.cuda.device_of(out):
            kernels.product[grid](
                rows, gate, up, sizes, out, partial, m, n, k, groups, every, rows[0].stride(0),
                *self._strides(), out.stride(0), *last,
                num_warps=config.warps, num_stages=config.stages,
            )  # fmt: skip
            if partial is not None:
                kernels.add_splits[grid[:2]](
                    rows, gate, up, out, partial, m, n, groups, every, out.stride(0), *last,
                    num_warps=config.warps,
                )  # fmt: skip

    def _strides(self) -> tuple[int, ...]:
        """Scales of a row of x; bytes of codes and scales of a row of w; of its matrices."""
        problem, (codes, scale, _, _) = self._problem, self._weights[0]
        x_blocks = problem.k // problem.x_kind.format.block if "@" in problem.x else 0
        blocks = problem.k // problem.w_kind.format.block
        return x_blocks, codes.shape[-1], blocks, codes.stride(0), scale.stride(0)

    def _readable(self, part: Parts) -> Parts:
        """Matrices one after the other, scales of four bytes as float32."""
        codes, scale, tensor_scale, table = part.placed(self.alignment)
        scales = scale.view(torch.float32) if self.alignment == 4 else scale
        return Parts(codes, scales, tensor_scale, table)

    def _operands(self, biases: tuple[Tensor | None, ...]) -> tuple[Any, Any]:
        """Gate and up, or the one matrix and None."""
        every = [
            (*part, None if bias is None else bias.contiguous())
            for part, bias in zip(self._weights, biases, strict=True)
        ]
        return every[0], every[1] if len(every) > 1 else None


def tiles(problem: Problem, config: Config) -> int:
    """CTAs of a batch. Each ragged group, and the rows of nobody, may have a tile that is not
    full."""
    along_n = -(-problem.n // config.tile_n)
    if not problem.ragged:
        return along_n * -(-problem.m // config.tile_m)
    return along_n * (problem.m // config.tile_m + min(problem.groups, problem.m) + 1)


def _rows_of(x: Tensor | Parts) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Numbers or codes, block scales, scales of rows."""
    if isinstance(x, Tensor):
        return x if x.stride(1) == 1 else x.contiguous(), None, None
    codes, scale, row_scale, _ = x
    scales = None if row_scale is None else row_scale.contiguous()
    return codes.contiguous(), scale.contiguous(), scales
