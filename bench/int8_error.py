"""What `x_format="int8"` costs in accuracy: python -m bench.int8_error

Relative errors of products, ||y - y*|| / ||y*||, as a markdown table. y* is the float64 product of
the bfloat16 x and the dequantised weight, so the error of the weights is not in it; it stands in
the last column, for comparison, against the weight before it was quantised.
"""

from __future__ import annotations

import torch
from rich.console import Console
from torch import Tensor

import blockscale as bs

_ROWS, _N, _K = 64, 1024, 4096
_FORMATS = (bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.BNB_NF4, bs.KBIT2)
_CHANNELS = 8  # of 4096 are larger, where some are


def activations(outliers: float) -> Tensor:
    """Gaussian, with a few channels so many times larger: bfloat16 [rows, k]."""
    x = torch.randn(_ROWS, _K)
    x[:, torch.randperm(_K)[:_CHANNELS]] *= outliers
    return x.bfloat16()


def relative(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


def main() -> None:
    torch.manual_seed(0)
    lines = [
        '| format | activations | `x_format="int8"` | bfloat16 x | the weights\' own error |',
        "|---|---|---|---|---|",
    ]
    weight = torch.randn(_N, _K)
    for format in _FORMATS:
        w = bs.quantize(weight, format).prepare()
        for label, size in (("Gaussian", 1), ("20x", 20), ("100x", 100)):
            x = activations(size)
            wide = x.double()
            expected, unquantised = wide @ w.dequantize().double().T, wide @ weight.double().T
            eight = relative(bs.matmul(x, w, x_format="int8", out_dtype=torch.float32), expected)
            sixteen = relative(bs.matmul(x, w), expected)
            own = relative(expected, unquantised)
            lines.append(f"| {format} | {label} | {eight:.2%} | {sixteen:.2%} | {own:.1%} |")
    Console(soft_wrap=True).print("\n".join(lines), markup=False, highlight=False)


if __name__ == "__main__":
    main()
