"""Inputs that conversions find hard, and formats of every kind, for the tests of all kernels."""

import math

import torch

from blockscale.formats import CATALOGUE, INT8, KBIT2, MXFP4, NVFP4, Codebook
from blockscale.kernels import Parts
from blockscale.numerics import amax_bits, tensor_scale_of
from conftest import CUSTOM

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def codebook(bits, values):
    return KBIT2.replace(name=f"codebook{bits}", element=Codebook(bits=bits, values=tuple(values)))


EXTRA = [
    INT8,
    NVFP4.replace(name="block8", block=8),
    NVFP4.replace(name="block2048", block=2048),
    MXFP4.replace(name="e1m0", element="e1m0"),
    MXFP4.replace(name="e5m0", element="e5m0"),
    MXFP4.replace(name="e1m6", element="e1m6"),
    codebook(6, torch.linspace(-1, 1, 64).pow(5).tolist()),  # crowded around zero
    codebook(7, [-1.0] * 60 + [1e-45] * 4 + [0.5 + i * 2.0**-24 for i in range(64)]),
    codebook(8, torch.linspace(-1, 1, 256).pow(3).tolist()),
]
EVERY = [*CATALOGUE.values(), *CUSTOM, *EXTRA]


def any_bits(*shape):
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32).view(torch.float32)


def ties(format, k):
    """Numbers at and beside the points where rounding changes, in blocks whose scale is one."""
    middles = torch.tensor(format.element.boundaries, dtype=torch.float64).float()
    up, down = (middles.nextafter(torch.tensor(end)) for end in (math.inf, -math.inf))
    near = torch.cat([middles, up, down])
    x = near[torch.randint(len(near), (k,))] * (torch.randint(2, (k,)) * 2 - 1)
    return x.masked_fill(torch.arange(k) % format.block == 0, format.element.max)


def hard_rows(format, k):  # float32 [1, rows, k]
    """One row for each kind of trouble."""
    normal = torch.randn(k)
    spoilt = normal.clone()
    spoilt[torch.randperm(k)[: k // 16]] = torch.tensor([math.inf, -math.inf, math.nan]).repeat(k)[
        : k // 16
    ]
    last = normal.clone()
    last[-1] = math.nan
    rows = [
        normal,
        normal * torch.randn(k).mul(6).exp(),  # heavy tails
        normal * 1e-41,  # subnormal
        normal * 1e-38 * torch.randn(k).exp(),  # across the border
        normal.sign() * 2.0**-149,
        normal * 1e38,
        torch.full((k,), torch.finfo(torch.float32).max),
        any_bits(k),
        spoilt,
        last,
        torch.zeros(k),
        -torch.zeros(k),
        torch.where(normal > 0, 0.0, -0.0),
        normal * (torch.arange(k) // format.block % 2),  # every other block is zero
        (normal * 4).round() / 4,
        ties(format, k),
    ]
    return torch.stack(rows)[None]


def row_scales(format, x):
    """The derived ones, one, and the extremes."""
    if not format.has_tensor_scale:
        return [None]
    derived = tensor_scale_of(amax_bits(x), format)
    extremes = torch.tensor([2.0**-149, 1e-40, 2.0**-126, 1e-20, 1e20, 2.0**127])
    mixed = extremes[torch.randint(len(extremes), derived.shape)]
    return [derived, torch.ones_like(derived), mixed]


def columns(format):
    """A few blocks, in whole groups of every packing."""
    return 5 * max(format.block, 32) if format.block < 2048 else 2 * format.block


def any_parts(format, layout, shape):
    """Every code and every scale, NaN and Inf among them."""
    groups, n, k = shape
    codes = torch.randint(1 << format.element.bits, shape, dtype=torch.uint8)
    scale_bytes = k // format.block * format.scale.bits // 8
    scale = torch.randint(256, (groups, n, scale_bytes), dtype=torch.uint8)
    tensor_scale = None
    if format.has_tensor_scale:
        tensor_scale = torch.randn(groups, n).mul(30).exp() * 1e-3
        tensor_scale[0, :3] = torch.tensor([1.0, 2.0**-149, 2.0**127])
    table = torch.tensor(format.codebook) if format.is_codebook else None
    return Parts(
        layout.pack_codes(codes, format), layout.pack_scale(scale, format), tensor_scale, table
    )
