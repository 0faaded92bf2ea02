"""DoRA on a packed weight: rows of weight + adapter get lengths of their own, which are trained.

peft's layer takes the norms of rows of weight + adapter at every call, so the packed weight is
decoded for each: memory for one decoded layer at a time, and the time to write and read it.
"""

from __future__ import annotations

from typing import Any

from peft.tuners.lora.dora import DoraLinearLayer
from peft.tuners.lora.layer import LoraVariant
from torch import Tensor, nn

from blockscale.nn import Linear


class Decoded(nn.Module):
    """What peft's layer asks of the one below it: a weight as numbers, and a bias."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.dequantize(), layer.bias


class PackedDora(LoraVariant):
    @staticmethod
    def init(module: Any, adapter_name: str, **options: Any) -> None:
        lengths = DoraLinearLayer(fan_in_fan_out=module.fan_in_fan_out)
        lengths.update_layer(
            base_layer=Decoded(module.get_base_layer()),
            lora_A=module.lora_A[adapter_name].weight,
            lora_B=module.lora_B[adapter_name].weight,
            scaling=module.scaling[adapter_name],
        )
        module.lora_magnitude_vector[adapter_name] = lengths

    @staticmethod
    def forward(
        module: Any, active_adapter: str, x: Tensor, result: Tensor, **options: Any
    ) -> Tensor:
        dropout = module.lora_dropout[active_adapter]
        untouched = isinstance(dropout, nn.Identity) or not module.training
        added: Tensor = module.lora_magnitude_vector[active_adapter](
            dropout(x),
            lora_A=module.lora_A[active_adapter],
            lora_B=module.lora_B[active_adapter],
            scaling=module.scaling[active_adapter],
            base_layer=Decoded(module.get_base_layer()),
            base_result=result if untouched else None,
            adapter_name=active_adapter,
        )
        return result + added


def with_lengths(lengths: Tensor, weight: Tensor, changed: Tensor) -> Tensor:
    """`changed` with rows scaled as a call scales its results: by the trained lengths over those of
    `weight`, which has this adapter alone."""
    scaled: Tensor = (lengths / weight.norm(dim=1))[:, None] * changed
    return scaled
