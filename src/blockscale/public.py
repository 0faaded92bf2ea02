"""The public names of `blockscale`, which loads this module when the first of them is asked for."""

from blockscale import formats, layouts, nn
from blockscale.checkpoint import load, load_into, save
from blockscale.formats import (
    BNB_FP4,
    BNB_NF4,
    KBIT2,
    KBIT3,
    KBIT4,
    KBIT5,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8,
    MXFP8_E5M2,
    NVFP4,
    Format,
    format,
)
from blockscale.models.optimize import optimize_
from blockscale.nn import quantize_
from blockscale.numerics import swiglu_oai
from blockscale.runtime import deterministic
from blockscale.tensor import (
    QTensor,
    cat,
    explain,
    fit_codebook,
    gated_matmul,
    grouped_gated_matmul,
    grouped_matmul,
    linear,
    matmul,
    quantize,
    shard,
    tune,
)

__all__ = [
    "BNB_FP4",
    "BNB_NF4",
    "KBIT2",
    "KBIT3",
    "KBIT4",
    "KBIT5",
    "MXFP4",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8",
    "MXFP8_E5M2",
    "NVFP4",
    "Format",
    "QTensor",
    "cat",
    "deterministic",
    "explain",
    "fit_codebook",
    "format",
    "formats",
    "gated_matmul",
    "grouped_gated_matmul",
    "grouped_matmul",
    "layouts",
    "linear",
    "load",
    "load_into",
    "matmul",
    "nn",
    "optimize_",
    "quantize",
    "quantize_",
    "save",
    "shard",
    "swiglu_oai",
    "tune",
]
