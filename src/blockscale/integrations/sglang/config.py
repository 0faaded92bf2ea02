"""The quantisation method "blockscale" in SGLang: linear layers on one rank."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.base_config import LinearMethodBase, QuantizationConfig
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.server_args import get_global_server_args
from torch import Tensor

from blockscale.checkpoint import Checkpoint
from blockscale.checkpoint.stored import Stored
from blockscale.formats import Format
from blockscale.integrations.engines.intake import Piece
from blockscale.integrations.engines.packed import PackedLinear
from blockscale.integrations.engines.stored_layers import LinearSource, StoredLayers
from blockscale.nn.labels import NAME
from blockscale.nn.packed import known_x_format
from blockscale.runtime import serving_x_format

_MEMBERS = {"q": 0, "k": 1, "v": 2, None: 0}  # SGLang's names for fused ones, or their numbers


class BlockscaleConfig(QuantizationConfig):
    """described: the quantization_config."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__()
        # Asked for by the user, or by whoever wrote the file.
        self.x_format = known_x_format(serving_x_format() or described.get("x_format"))

    def get_name(self) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 75

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BlockscaleConfig:
        return cls(config)

    def get_scaled_act_names(self) -> list[str]:
        return []

    @cached_property
    def layers(self) -> StoredLayers:
        checkpoint = Checkpoint(get_global_server_args().model_path)
        return StoredLayers(checkpoint.tensors, lambda module: module)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if not isinstance(layer, LinearBase):
            packed = [each for each in self.layers.below(prefix).values() if each.format]
            if packed and not list(layer.children()):
                raise ValueError(f"{packed[0].name} is packed: SGLang gets linear layers only")
            return None
        members = self.packed_modules_mapping.get(prefix.rpartition(".")[2], [])
        source = self.layers.linear(prefix, members)
        if source is None:
            return UnquantizedLinearMethod()
        return BlockscaleLinearMethod(source, self.x_format)


class BlockscaleLinearMethod(LinearMethodBase):
    """Stored tensors are parameters under the names that files have, filled by SGLang's loader."""

    def __init__(self, source: LinearSource, x_format: Format | str | None) -> None:
        self.pieces = [Piece(stored) for stored in source.weights]
        self.unused, self.x_format = source.unused, x_format

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        if (sum(output_partition_sizes), input_size_per_partition) != (output_size, input_size):
            raise ValueError("packed layers are served by SGLang on one rank: --tp-size 1")
        self.device, self.dtype = torch.empty(0).device, params_dtype
        for leaf in self._leaves():
            parameter: Any = torch.nn.Parameter(torch.empty(0), requires_grad=False)
            parameter.weight_loader = lambda _, tensor, member=None, leaf=leaf: self._take(
                leaf, tensor, member
            )
            layer.register_parameter(leaf, parameter)

    def _leaves(self) -> set[str]:
        stored: list[Stored] = [*(piece.stored for piece in self.pieces), *self.unused]
        return {entry.name.rpartition(".")[2] for each in stored for entry in each.parts.values()}

    def _take(self, leaf: str, tensor: Tensor, member: str | int | None) -> None:
        place = member if isinstance(member, int) else _MEMBERS[member]
        piece = self.pieces[place]
        for role, entry in piece.stored.parts.items():
            if entry.name.rpartition(".")[2] == leaf:
                piece.take(role, tensor)

    def process_weights_after_loading(self, layer: Any) -> None:
        weights = [piece.assemble().to(self.device) for piece in self.pieces]
        plain = [each.to(self.dtype) if isinstance(each, Tensor) else each for each in weights]
        for leaf in self._leaves():
            delattr(layer, leaf)
        layer.blockscale = PackedLinear(plain, self.x_format)
        layer.blockscale.prepare()

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = layer.blockscale(x, bias)
        return result
