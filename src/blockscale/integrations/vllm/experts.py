"""Experts of vLLM's with packed weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from blockscale.checkpoint.load_into import stack_experts
from blockscale.formats import Format
from blockscale.integrations.engines.expert_sources import (
    DOWN,
    GATE,
    ROLES,
    UP,
    ExpertPieces,
    Ranks,
    want_experts,
)
from blockscale.integrations.engines.intake import Piece
from blockscale.integrations.engines.packed import Memory
from blockscale.integrations.vllm.linear import HELD, dummy
from blockscale.integrations.vllm.served_model import ServedModel
from blockscale.nn import Experts
from blockscale.numerics import Activation, parse_activation, swiglu_oai
from blockscale.tensor import QTensor

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
_SWIGLU_OAI = ("swigluoai", "swigluoai_uninterleave")


class BlockscaleMoEMethod(FusedMoEMethodBase):
    """One for each layer: routing, shared experts and sums over ranks are vLLM's."""

    def __init__(self, layer: Any, model: ServedModel, x_format: Format | str | None) -> None:
        super().__init__(layer.moe_config)
        self.name, self.model, self.x_format = layer.layer_name, model, x_format
        self.activation = _activation(layer)
        model.startup.expect(self.name)

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        self.device, self.dtype = torch.empty(0).device, params_dtype
        names = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
        self.ranks = _ranks(layer)
        self.pieces: ExpertPieces = want_experts(
            self.model.intake,
            self.model.layers.below(self.name),
            dict(zip(names, ROLES, strict=True)),
            self.ranks,
        )
        self.model.intake.on_reload(self._reload)

    def process_weights_after_loading(self, layer: Any) -> None:
        if hasattr(layer, HELD):
            return  # weights that are loaded anew are overwritten at the end of the stream
        experts = self._build()
        self.memory = Memory(experts)
        setattr(layer, HELD, experts)
        layer.w2_weight_packed = experts.down.codes  # where adapters look for the device
        self.model.startup.ready(self.name, experts, self.moe.experts_per_token)

    def _untouched(self) -> bool:
        return all(piece.untouched for piece in self.pieces.every())

    def _reload(self) -> None:
        if not self._untouched():
            self.memory.overwrite(self._build())

    def _build(self) -> Experts:
        read = {id(piece): self._read(piece) for piece in self.pieces.every()}
        weights, biases = {}, {}
        for role in ROLES:
            values = [read[id(piece)] for piece in self.pieces.weights[role]]
            weights[role] = self._part(role, self._stacked(role, values))
            if role in self.pieces.biases:
                plain = [read[id(piece)] for piece in self.pieces.biases[role]]
                biases[role] = self._bias(role, plain)
        experts = Experts.from_qtensors(
            weights[GATE],
            weights[UP],
            weights[DOWN],
            activation=self.activation,
            gate_bias=biases.get(GATE),
            up_bias=biases.get(UP),
            down_bias=biases.get(DOWN),
            x_format=self.x_format,
        )
        experts.requires_grad_(requires_grad=False)
        experts.prepare()
        return experts

    def _read(self, piece: Piece) -> QTensor | Tensor:
        if self.model.is_dummy:
            return dummy(piece, self.dtype, self.device)
        value = piece.assemble()
        return value.to(self.device)

    def _stacked(self, role: str, values: list[Any]) -> QTensor:
        plain = [value for value in values if not isinstance(value, QTensor)]
        if plain:
            raise ValueError(
                f"{self.name}: {role} has experts that are packed and others not: quantise all of "
                "them, or none"
            )
        if len(values[0].shape) == 3:
            whole: QTensor = values[0]
            return whole
        return stack_experts(f"{self.name} {role}", dict(enumerate(values)))

    def _part(self, role: str, value: Any) -> Any:
        """Of a tensor that has gate and up, rows or biases of the one or the other."""
        if role == DOWN or self.pieces.weights[GATE][0] is not self.pieces.weights[UP][0]:
            return value
        half = value.shape[1] // 2
        return value[:, :half] if role == GATE else value[:, half:]

    def _bias(self, role: str, plain: list[Any]) -> Tensor | None:
        """Ranks that share features add up what they have: one of them has the bias of the sum."""
        if role == DOWN and self.ranks.rank > 0:
            return None
        whole = plain[0] if plain[0].dim() == 2 else torch.stack(plain)
        part: Tensor = self._part(role, whole)
        return part.to(self.dtype).contiguous()

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

    def apply(
        self,
        layer: Any,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any,
        shared_experts_input: Tensor | None,
    ) -> Tensor:
        if layer.expert_map is not None:
            topk_ids = layer.expert_map[topk_ids]  # -1: of another rank
        if layer.apply_router_weight_on_input:
            x = x * topk_weights.to(x.dtype)  # vLLM allows it with one expert for each token
            topk_weights = torch.ones_like(topk_weights)
        result: Tensor = layer.blockscale(x, topk_ids, topk_weights)
        return result


def _ranks(layer: Any) -> Ranks:
    moe = layer.moe_config
    numbers = list(range(moe.num_experts))
    if layer.expert_map is not None:
        places = layer.expert_map.tolist()
        numbers = sorted((n for n in numbers if places[n] >= 0), key=places.__getitem__)
    return Ranks(numbers, moe.num_experts, moe.tp_rank, moe.tp_size)


def _activation(layer: Any) -> Activation:
    name, limit, alpha = layer.activation.value, layer.swiglu_limit, layer.swiglu_alpha
    if name in _SWIGLU_OAI:
        given = {"alpha": alpha, "limit": limit}
        return swiglu_oai(**{key: value for key, value in given.items() if value is not None})
    if name not in _ACTIVATIONS or limit is not None:
        clamped = "" if limit is None else f" with a limit of {limit}"
        raise ValueError(
            f"{layer.layer_name}: experts with {name}{clamped} are not served, only "
            f"{', '.join((*_ACTIVATIONS, _SWIGLU_OAI[0]))}: keep them unquantised"
        )
    return parse_activation(name)
