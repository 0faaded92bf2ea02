"""`Linear`: a linear layer with a quantised weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blockscale.formats import Format
from blockscale.nn.packed import PackedModule, as_autocast, as_parameter, blank, known_x_format
from blockscale.nn.sharding import Sharding, shared_bias
from blockscale.tensor import QTensor, linear, quantize


class Linear(PackedModule):
    """x @ weight.T + bias, with a weight [out_features, in_features] in any format.

    Made from an `nn.Linear` by `from_linear`, from a QTensor by `from_qtensor`, or blank (every
    byte zero), for a state dict to be loaded into:

        weight_codes, weight_scale             uint8, canonical
        weight_tensor_scale, weight_codebook   float32, where the format has them
        bias                                   a parameter, in its own dtype

    x_format   None, or what x is quantised to on the fly: a format, or "int8"

    Gradients flow to x and to the bias, so adapters train on top; the weight is frozen.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        format: Format | str,
        *,
        bias: bool = True,
        x_format: Format | str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.x_format = known_x_format(x_format, in_features)
        self._hold("weight", blank(format, (out_features, in_features), device))
        zeros = torch.zeros(out_features, device=device, dtype=dtype) if bias else None
        self.bias = None if zeros is None else nn.Parameter(zeros)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        format: Format | str,
        scale: str = "mse",
        x_format: Format | str | None = None,
    ) -> Linear:
        """Quantise the weight of a layer; the bias is taken over as it is."""
        return cls.from_qtensor(quantize(linear.weight, format, scale=scale), linear.bias, x_format)

    @classmethod
    def from_qtensor(
        cls,
        q: QTensor,
        bias: Tensor | None = None,
        x_format: Format | str | None = None,
        *,
        sharding: Sharding | None = None,
    ) -> Linear:
        """Around a weight that is quantised already. Nothing is copied.

        sharding   where q is this rank's part of a weight that ranks share; `bias` is then all of
                   it, or this rank's part too. The layer has the features of the whole, as an
                   `nn.Linear` with a DTensor has, and multiplies by its part
        """
        if len(q.shape) != 2 or (q.tensor_scale is not None and q.tensor_scale.dim()):
            raise ValueError(f"Linear needs a weight [n, k] with one tensor scale, got {q}")
        bias = shared_bias(bias, sharding)
        n, k = q.shape if sharding is None else sharding.shape
        if bias is not None and tuple(bias.shape) != (n,):
            raise ValueError(f"Linear: bias must be [{n}], got {list(bias.shape)}")
        layer = cls(k, n, q.format, bias=False, x_format=x_format, device="meta")
        layer._hold("weight", q)
        layer.bias = as_parameter(bias)
        if sharding is not None:
            layer.shard_over({"weight": sharding})
        return layer

    @property
    def weight(self) -> QTensor:
        """As it is held: canonical until the first use, then in the layout of its device."""
        return self._held("weight")

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight as numbers [out_features, in_features]."""
        return self.weight.dequantize(dtype)

    def forward(self, x: Tensor) -> Tensor:
        (weight,) = self._prepared("weight")
        return linear(as_autocast(x), weight, self.bias, x_format=self.x_format)

    def extra_repr(self) -> str:
        parts = [
            f"in_features={self.in_features}, out_features={self.out_features}",
            f"bias={self.bias is not None}, format={self.weight.format}",
        ]
        if self.x_format is not None:
            parts.append(f"x_format={self.x_format}")
        return ", ".join(parts)
