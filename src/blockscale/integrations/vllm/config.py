"""The quantisation method "blockscale" of one model in vLLM: which of its layers are packed.

vLLM makes this object from the quantization_config of config.json and sends it to its workers.
There the headers of the checkpoint say which layers are packed, in which format and dialect: the
lists in config.json are not consulted.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import WeightsMapper
from vllm.platforms import current_platform

from blockscale.integrations.engines.expert_sources import is_packed
from blockscale.integrations.vllm.claims import claims
from blockscale.integrations.vllm.experts import BlockscaleMoEMethod
from blockscale.integrations.vllm.head import BlockscaleHeadMethod
from blockscale.integrations.vllm.linear import BlockscaleLinearMethod
from blockscale.integrations.vllm.served_model import ServedModel, StreamMapper
from blockscale.nn.labels import NAME
from blockscale.nn.packed import known_x_format
from blockscale.runtime import serving_everywhere, serving_x_format


class BlockscaleConfig(QuantizationConfig):
    """described: the quantization_config, of any dialect that is read here."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__()
        self.described = described
        # Asked for by the user, or by whoever wrote the file.
        self.x_format = known_x_format(serving_x_format() or described.get("x_format"))
        self.mappers: list[WeightsMapper] = []

    def get_name(self) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 75

    @staticmethod
    def get_config_filenames() -> list[str]:
        return ["hf_quant_config.json"]  # of older files of ModelOpt

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BlockscaleConfig:
        return cls(config)

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        taken = claims(
            hf_quant_cfg,
            getattr(hf_config, "model_type", ""),
            asked=user_quant,
            on_cpu=current_platform.is_cpu(),
            everywhere=serving_everywhere(),
        )
        return NAME if taken else None

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        """Of a model, and then of the models inside it."""
        self.mappers.append(hf_to_vllm_mapper)
        if "model" in self.__dict__:
            self.model.name_layers(self.mappers)

    def get_checkpoint_weight_mapper(self) -> WeightsMapper:
        return StreamMapper.of(super().get_checkpoint_weight_mapper(), self.model.intake)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if not isinstance(layer, (LinearBase, ParallelLMHead, RoutedExperts)):
            return None
        self.model.note(prefix)
        if isinstance(layer, RoutedExperts):
            if not is_packed(self.model.layers.below(prefix)):
                return None
            return BlockscaleMoEMethod(layer, self.model, self.x_format)
        members = self.packed_modules_mapping.get(prefix.rpartition(".")[2], [])
        source = self.model.layers.linear(prefix, members)
        if source is not None:
            is_head = isinstance(layer, ParallelLMHead)
            kind = BlockscaleHeadMethod if is_head else BlockscaleLinearMethod
            return kind(prefix, source, self.model, self.x_format)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None

    @cached_property
    def model(self) -> ServedModel:
        """What this process loads: known in a worker, when the first layer is built."""
        return ServedModel(get_current_vllm_config(), self.mappers)
