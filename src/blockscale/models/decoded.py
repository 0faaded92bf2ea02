"""Evaluation reads thousands of tokens at a time: a product of matrices, not of a vector.

Kernels for quantised weights earn their keep where the weight is the traffic, which is decoding, a
few rows at a time. With many rows the products themselves are the work, and decoding a weight first
costs next to nothing. The result is the same: a product is defined on the decoded weight, and this
is one of its roundings.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.nn import Linear


class DecodedLinear(nn.Module):
    """A quantised layer that decodes its whole weight for each call, and multiplies by torch."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.layer.dequantize(x.dtype), self.layer.bias)


def decode_(model: nn.Module) -> None:
    """Let every quantised linear layer of a model work this way, in place.

    Layers that quantise their inputs too are left: what they compute is not a product with x.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear) and child.x_format is None:
                setattr(module, name, DecodedLinear(child))
