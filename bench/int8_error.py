"""What `x_format="int8"` costs in accuracy: python -m bench.int8_error

Relative errors of bfloat16 results, ||y - y*|| / ||y*||, as a markdown table. y* is the float64
product of the bfloat16 x and the dequantised weight, so the error of the weights is not in it: that
stands in the last column, against the weight before it was quantised.

Where a few channels of x are much larger than the rest, they are most of y*, and an error that is
small beside them may be large beside what the other channels say. So that is given too.
"""

from __future__ import annotations

import torch
from rich.console import Console
from torch import Tensor

import blockscale as bs

_ROWS, _N, _K = 64, 1024, 4096
_LARGE = 8  # channels of the 4096
_FORMATS = (bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.BNB_NF4, bs.KBIT2)
_HEADINGS = (
    "format", "large channels", "`int8`", "bfloat16", "`int8`, beside the other channels",
    "bfloat16, beside them", "the weights' own",
)  # fmt: skip


def errors(weight: Tensor, format: bs.Format, size: float) -> list[float]:
    """x is Gaussian, with a few channels `size` times larger."""
    x, large = torch.randn(_ROWS, _K), torch.randperm(_K)[:_LARGE]
    x[:, large] *= size
    x = x.bfloat16()
    ordinary = x.double().index_fill(1, large, 0)
    w = bs.quantize(weight, format).prepare()
    decoded = w.dequantize().double()
    expected = x.double() @ decoded.T
    eight = (bs.matmul(x, w, x_format="int8").double() - expected).norm()
    sixteen = (bs.matmul(x, w).double() - expected).norm()
    own = (expected - x.double() @ weight.double().T).norm()
    whole, others = expected.norm(), (ordinary @ decoded.T).norm()
    return [float(e) for e in (eight / whole, sixteen / whole, eight / others, sixteen / others,
                               own / whole)]  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    weight = torch.randn(_N, _K)
    lines = [_HEADINGS, ("---",) * len(_HEADINGS)]
    for format in _FORMATS:
        for size in (1, 20, 100):
            label = f"{size}x" if size > 1 else "none"
            numbers = errors(weight, format, size)
            lines.append((str(format), label, *(f"{number:.2%}" for number in numbers)))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    Console(soft_wrap=True).print(table, markup=False, highlight=False)


if __name__ == "__main__":
    main()
