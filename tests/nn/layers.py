"""Small quantised layers."""

import torch

import blockscale as bs

FORMATS = [bs.NVFP4, bs.MXFP8, bs.KBIT3, bs.BNB_NF4]

FIELDS = ("codes", "scale", "tensor_scale", "codebook")


def layer_of(format, *, bias=True, n=32, k=64, **options):
    source = torch.nn.Linear(k, n, bias=bias)
    return bs.nn.Linear.from_linear(source, format, scale="absmax", **options)
