"""The definition: pure torch, exact, the same bits everywhere; what kernels are tested against."""

from blockscale.numerics.activations import Activation, parse_activation, swiglu_oai
from blockscale.numerics.convert import element_map, mxfp4_scales_to_nvfp4
from blockscale.numerics.dequantize import dequantize_rows, scaled_values
from blockscale.numerics.elements import decode, decode_scale, encode
from blockscale.numerics.exact import cast, is_finite_bits, magnitude_bits, widen
from blockscale.numerics.fit import fit_levels
from blockscale.numerics.matmul import branch, group_slices, input_gradient
from blockscale.numerics.quantize import (
    Quantized,
    amax_bits,
    check_rule,
    quantize_rows,
    rules_of,
    tensor_scale_of,
)
from blockscale.numerics.scales import carry_from

__all__ = [
    "Activation",
    "Quantized",
    "amax_bits",
    "branch",
    "carry_from",
    "cast",
    "check_rule",
    "decode",
    "decode_scale",
    "dequantize_rows",
    "element_map",
    "encode",
    "fit_levels",
    "group_slices",
    "input_gradient",
    "is_finite_bits",
    "magnitude_bits",
    "mxfp4_scales_to_nvfp4",
    "parse_activation",
    "quantize_rows",
    "rules_of",
    "scaled_values",
    "swiglu_oai",
    "tensor_scale_of",
    "widen",
]
