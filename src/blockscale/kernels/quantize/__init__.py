"""Plain tensors to codes and scales.

No weights. Launches are called with (x, tensor_scale, codebook, codes, scale):

x             [groups, n, k]; the problem's m is groups * n
tensor_scale  float32 [groups, n], one per row, or None where the format has none; an output where
              the problem `derives` it from each row
codebook      float32 [2^bits], or None
codes, scale  outputs: storage in the layout of the problem's w

Where the problem is `weighted`, and only there, one more tensor follows:

importance    float32 [groups, k], of the squared errors that the rule "mse" searches
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.quantize import cpu, cuda, reference

KERNELS: tuple[Kernel, ...] = (cpu, cuda, reference)
