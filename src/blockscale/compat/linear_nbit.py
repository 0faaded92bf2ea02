"""`LinearNbit`: a linear layer with k-bit weights."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.compat.kbit import kbit_format
from blockscale.nn.packed import PackedModule, as_parameter
from blockscale.tensor import QTensor, linear, quantize


class LinearNbit(PackedModule):
    """x @ weight.T + bias with a k-bit weight: `LinearNbit.from_linear(layer, k=4)`.

    The weight is held as in `blockscale.nn.Linear`: packed for the kernels of its device at its
    first use, never cast, and canonical in the state dict.

    codebook   2^k values, such as `create_normal_float_codebook(k, method="bin_means")`
    """

    bias: torch.nn.Parameter | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        k: int = 4,
        codebook: Tensor | None = None,
    ) -> None:
        super().__init__()
        if weight.dim() != 2:
            raise ValueError(f"LinearNbit: weight must be [N, K], got {list(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        if bias is not None and tuple(bias.shape) != (self.out_features,):
            raise ValueError(
                f"LinearNbit: bias must be [{self.out_features}], got {list(bias.shape)}"
            )
        self._hold("weight", quantize(weight, kbit_format(k, codebook), scale="mse"))
        self.bias = as_parameter(bias)

    @classmethod
    def from_linear(
        cls, layer: torch.nn.Linear, *, k: int = 4, codebook: Tensor | None = None
    ) -> LinearNbit:
        return cls(layer.weight, layer.bias, k=k, codebook=codebook)

    @property
    def weight(self) -> QTensor:
        """As it is held: canonical until the first use, then in the layout of its device."""
        return self._held("weight")

    def forward(self, x: Tensor) -> Tensor:
        (weight,) = self._prepared("weight")
        return linear(x, weight, self.bias)

    def extra_repr(self) -> str:
        parts = [
            f"in_features={self.in_features}, out_features={self.out_features}",
            f"bias={self.bias is not None}, format={self.weight.format}",
        ]
        return ", ".join(parts)
