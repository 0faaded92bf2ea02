"""Linear layers of vLLM's with packed weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearMethodBase,
    QKVParallelLinear,
    RowParallelLinear,
)

from blockscale.checkpoint.stored import Stored
from blockscale.formats import Format
from blockscale.integrations.engines.intake import Cut, Piece
from blockscale.integrations.engines.packed import Memory, PackedLinear
from blockscale.integrations.engines.stored_layers import LinearSource
from blockscale.integrations.vllm.served_model import ServedModel
from blockscale.nn.packed import blank
from blockscale.tensor import QTensor, part_range

HELD = "blockscale"  # the attribute of a layer of vLLM's that has its weights


class BlockscaleLinearMethod(LinearMethodBase):
    """One for each layer, with its stored weights."""

    def __init__(
        self, name: str, source: LinearSource, model: ServedModel, x_format: Format | str | None
    ) -> None:
        self.name, self.source, self.model, self.x_format = name, source, model, x_format
        self.pieces: list[Piece] = []
        model.startup.expect(name)

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        self.device, self.dtype = torch.empty(0).device, params_dtype
        for stored, cut in zip(
            self.source.weights, self._cuts(layer, output_partition_sizes), strict=True
        ):
            self.pieces.append(self.model.intake.want(stored, cut))
        for scale in self.source.unused:
            self.model.intake.ignore(scale)
        self._check(self._rows(layer, output_partition_sizes), input_size_per_partition)
        self.model.intake.on_reload(self._reload)

    def _rows(self, layer: Any, sizes: list[int]) -> int:
        """That this rank's weights must have together."""
        return sum(sizes)

    def _check(self, n: int, k: int) -> None:
        shapes = [piece.shape for piece in self.pieces]
        if sum(shape[0] for shape in shapes) != n or any(shape[1] != k for shape in shapes):
            names = ", ".join(f"{p.stored.name} {list(p.stored.shape)}" for p in self.pieces)
            raise ValueError(
                f"{self.name} needs a weight [{n}, {k}] on this rank, and the checkpoint has "
                f"{names}: does its config.json belong to these files?"
            )

    def _cuts(self, layer: Any, sizes: list[int]) -> list[Cut | None]:
        """This rank's part of each stored weight."""
        weights = self.source.weights
        if isinstance(layer, RowParallelLinear):
            return [self._columns(stored, layer.tp_rank, layer.tp_size) for stored in weights]
        if not isinstance(layer, ColumnParallelLinear) or layer.tp_size == 1:
            return [None] * len(weights)
        starts = _starts(layer, sizes)
        if len(weights) == len(sizes):
            offsets = [0] * len(sizes)
        elif len(weights) == 1:
            offsets = _offsets(layer)
        else:
            raise ValueError(
                f"{self.name}: {len(weights)} stored weights for {len(sizes)} fused ones: does its "
                "config.json belong to these files?"
            )
        ranges = [
            (offset + start, offset + start + size)
            for offset, start, size in zip(offsets, starts, sizes, strict=True)
        ]
        if len(weights) == 1:
            return [Cut(0, tuple(ranges))]
        return [Cut(0, (each,)) for each in ranges]

    def _columns(self, stored: Stored, rank: int, ranks: int) -> Cut | None:
        if ranks == 1:
            return None
        try:
            start, length = part_range(stored.shape, 1, rank, ranks, stored.format)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        return Cut(1, ((start, start + length),))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if hasattr(layer, HELD):
            return  # it was the bias that was loaded anew: weights are at the end of the stream
        packed = self._build()
        self.memory = Memory(packed)
        setattr(layer, HELD, packed)
        # Where adapters look for the device of a layer.
        layer.weight_packed = packed.qtensors().popitem()[1].codes
        self.model.startup.ready(self.name, packed)

    def _build(self) -> PackedLinear:
        if self.model.is_dummy:
            weights = [dummy(piece, self.dtype, self.device) for piece in self.pieces]
        else:
            weights = [self._placed(piece.assemble()) for piece in self.pieces]
        packed = PackedLinear(weights, self.x_format)
        packed.prepare()
        return packed

    def _reload(self) -> None:
        if not all(piece.untouched for piece in self.pieces):
            self.memory.overwrite(self._build())

    def _placed(self, weight: QTensor | Tensor) -> QTensor | Tensor:
        if isinstance(weight, QTensor):
            return weight.to(self.device)
        return weight.to(self.device, self.dtype)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = layer.blockscale(x, bias)
        return result


def dummy(piece: Piece, dtype: torch.dtype, device: torch.device) -> QTensor | Tensor:
    """This rank's part of a tensor that nobody loads, every byte zero."""
    if piece.stored.format is None:
        return torch.zeros(piece.shape, dtype=dtype, device=device)
    return blank(piece.stored.format, piece.shape, device)


def _starts(layer: Any, sizes: list[int]) -> list[int]:
    """Where this rank's rows of each fused weight begin; ranks may have the same k and v."""
    ranks = [layer.tp_rank] * len(sizes)
    if isinstance(layer, QKVParallelLinear):
        shared = layer.tp_rank // layer.num_kv_head_replicas
        ranks = [layer.tp_rank, shared, shared]
    return [rank * size for rank, size in zip(ranks, sizes, strict=True)]


def _offsets(layer: Any) -> list[int]:
    """Where each fused weight begins in one that has all of them."""
    if isinstance(layer, QKVParallelLinear):
        q, k = layer.total_num_heads * layer.head_size, layer.total_num_kv_heads * layer.head_size
        return [0, q, q + k]
    wholes = getattr(layer, "output_sizes", [layer.output_size])
    return [sum(wholes[:i]) for i in range(len(wholes))]
