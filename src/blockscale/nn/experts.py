"""`Experts`: the experts of a mixture, with quantised weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from blockscale.formats import Format
from blockscale.formats import format as find_format
from blockscale.nn.fused import read_fused
from blockscale.nn.packed import (
    PackedModule,
    as_autocast,
    as_parameter,
    blank,
    known_x_format,
)
from blockscale.nn.projections import quantize_sharing
from blockscale.nn.routing import (
    experts_of_stacked,
    gather_rows,
    sort_by_expert,
    sum_of_experts,
)
from blockscale.nn.sharding import Sharding, local, shared_bias
from blockscale.numerics import Activation, parse_activation
from blockscale.tensor import QTensor, grouped_gated_matmul, grouped_matmul

_WEIGHTS = ("gate", "up", "down")


class Experts(PackedModule):
    """For each token, the weighted sum over its experts of down(act(gate(x)) * up(x)).

    gate, up   [e, intermediate, hidden], in one format
    down       [e, hidden, intermediate]

    Takes the place of transformers' fused experts: `from_fused` reads them, `forward` is called
    like theirs. A state dict has `gate_codes`, `gate_scale` and so on for gate, up and down, named
    as in `Linear`, and `gate_bias`, `up_bias`, `down_bias`.

    x_format   None, or what the inputs of both products are quantised to on the fly
    stacked    called as Llama 4 calls its experts, with x [e * tokens, hidden] alone: the rows of
               each expert together, weighted already, zeros for tokens that it does not get. The
               result is as x is
    """

    gate_bias: nn.Parameter | None
    up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        intermediate: int,
        format: Format | str,
        *,
        down_format: Format | str | None = None,  # where it is another
        activation: str | Activation = "silu",
        bias: bool = False,
        x_format: Format | str | None = None,
        stacked: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_experts, self.hidden, self.intermediate = num_experts, hidden, intermediate
        self.activation, self.stacked = parse_activation(activation), stacked
        self.x_format = known_x_format(x_format, hidden, intermediate)
        inner, outer = (num_experts, intermediate, hidden), (num_experts, hidden, intermediate)
        self._hold("gate", blank(format, inner, device))
        self._hold("up", blank(format, inner, device))
        self._hold("down", blank(down_format or format, outer, device))
        for name, shape in zip(_WEIGHTS, (inner, inner, outer), strict=True):
            zeros = torch.zeros(shape[:-1], device=device, dtype=dtype) if bias else None
            self.register_parameter(f"{name}_bias", None if zeros is None else nn.Parameter(zeros))

    @classmethod
    def from_qtensors(
        cls,
        gate: QTensor,
        up: QTensor,
        down: QTensor,
        *,
        activation: str | Activation = "silu",
        gate_bias: Tensor | None = None,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        x_format: Format | str | None = None,
        stacked: bool = False,
        shardings: Mapping[str, Sharding] | None = None,
    ) -> Experts:
        """Around weights that are quantised already. Nothing is copied.

        shardings   of gate, up and down, where these are this rank's parts of weights that ranks
                    share: whole experts, or intermediate features. Biases are then whole, or parts
        """
        shared = shardings or {}
        weights = dict(zip(_WEIGHTS, (gate, up, down), strict=True))
        given = dict(zip(_WEIGHTS, (gate_bias, up_bias, down_bias), strict=True))
        biases = {name: shared_bias(bias, shared.get(name)) for name, bias in given.items()}
        _check(weights, {name: None if b is None else local(b) for name, b in biases.items()})
        experts, intermediate, hidden = gate.shape
        module = cls(
            experts,
            hidden,
            intermediate,
            gate.format,
            down_format=down.format,
            activation=activation,
            x_format=x_format,
            stacked=stacked,
            device="meta",
        )
        for name in _WEIGHTS:
            module._hold(name, weights[name])
            module.register_parameter(f"{name}_bias", as_parameter(biases[name]))
        module.shard_over(shared)
        return module

    @classmethod
    def from_fused(
        cls,
        module: nn.Module,
        format: Format | str,
        scale: str = "mse",
        x_format: Format | str | None = None,
    ) -> Experts:
        """Quantise the fused experts of a transformers model."""
        fused = read_fused(module)
        if isinstance(fused, str):
            raise TypeError(f"Experts.from_fused: {fused}")
        format = find_format(format)
        gate, up = quantize_sharing((fused.gate, fused.up), format, scale)
        (down,) = quantize_sharing((fused.down,), format, scale)
        return cls.from_qtensors(
            gate,
            up,
            down,
            activation=fused.activation,
            gate_bias=fused.gate_bias,
            up_bias=fused.up_bias,
            down_bias=fused.down_bias,
            x_format=x_format,
            stacked=fused.stacked,
        )

    @property
    def gate(self) -> QTensor:
        return self._held("gate")

    @property
    def up(self) -> QTensor:
        return self._held("up")

    @property
    def down(self) -> QTensor:
        return self._held("down")

    def forward(
        self,
        hidden_states: Tensor,  # [..., hidden]
        top_k_index: Tensor | None = None,  # [..., top]; numbers that no expert has are nobody's
        top_k_weights: Tensor | None = None,  # [..., top]
    ) -> Tensor:
        if hidden_states.shape[-1:] != (self.hidden,):  # rows of another width would be cut anew
            raise ValueError(
                f"Experts: hidden_states must be [..., {self.hidden}], got "
                f"{list(hidden_states.shape)}"
            )
        if self.stacked:
            x = hidden_states.reshape(-1, self.hidden)
            if len(x) % self.num_experts:
                raise ValueError(
                    f"Experts: stacked hidden_states must have as many rows for each of "
                    f"{self.num_experts} experts, got {len(x)} in all"
                )
            index = experts_of_stacked(x, self.num_experts)[:, None]
            return self._routed(x, index, x.new_ones(index.shape)).reshape(hidden_states.shape)
        if top_k_index is None or top_k_weights is None:
            raise TypeError("Experts: top_k_index and top_k_weights are needed: who gets each row")
        rows, top = hidden_states.shape[:-1].numel(), top_k_index.shape[-1]
        for name, given in (("top_k_index", top_k_index), ("top_k_weights", top_k_weights)):
            if given.shape[-1] != top or given.shape[:-1].numel() != rows:
                raise ValueError(
                    f"Experts: {name} must be [{rows}, {top}], a row for each of hidden_states "
                    f"{list(hidden_states.shape)}, got {list(given.shape)}"
                )
        return self._routed(hidden_states, top_k_index, top_k_weights)

    def _routed(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        gate, up, down = self._prepared(*_WEIGHTS)
        hidden_states = as_autocast(hidden_states)
        order, sizes = sort_by_expert(top_k_index, self.num_experts)
        x = gather_rows(hidden_states.reshape(-1, self.hidden), order, top_k_index.shape[-1])
        x = grouped_gated_matmul(
            x,
            gate,
            up,
            sizes,
            self.activation,
            self.gate_bias,
            self.up_bias,
            x_format=self.x_format,
        )
        # Float32 until the experts of a token are summed: one rounding, at the end.
        y = grouped_matmul(
            x, down, sizes, self.down_bias, x_format=self.x_format, out_dtype=torch.float32
        )
        y = sum_of_experts(y, order, top_k_weights)
        return y.to(hidden_states.dtype).reshape(hidden_states.shape)

    def extra_repr(self) -> str:
        gate, down = self.gate.format, self.down.format
        parts = [
            f"num_experts={self.num_experts}, hidden={self.hidden}",
            f"intermediate={self.intermediate}, bias={self.down_bias is not None}",
            f"activation={self.activation}, format={gate}",
        ]
        if down != gate:
            parts.append(f"down_format={down}")
        if self.stacked:
            parts.append("stacked=True")
        if self.x_format is not None:
            parts.append(f"x_format={self.x_format}")
        return ", ".join(parts)


def _check(weights: dict[str, QTensor], biases: dict[str, Tensor | None]) -> None:
    gate, up, down = weights.values()
    for name, weight in weights.items():
        shape = weight.shape
        if len(shape) != 3 or (weight.tensor_scale is not None and weight.tensor_scale.dim() != 1):
            raise ValueError(
                f"Experts: {name} must be [e, n, k] with a tensor scale per expert, got {weight}"
            )
        bias = biases[name]
        if bias is not None and tuple(bias.shape) != shape[:-1]:
            raise ValueError(
                f"Experts: {name}_bias must be {list(shape[:-1])}, got {list(bias.shape)}"
            )
    if gate.shape != up.shape or gate.format.spec != up.format.spec:
        raise ValueError(f"Experts: gate and up must be alike, got {gate} and {up}")
    if down.shape != (gate.shape[0], gate.shape[2], gate.shape[1]):
        raise ValueError(
            f"Experts: down must be {[gate.shape[0], gate.shape[2], gate.shape[1]]} to follow a "
            f"gate of {list(gate.shape)}, got {list(down.shape)}"
        )
