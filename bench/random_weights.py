"""Quantised weights of random bytes: speed does not depend on values, as long as all are finite."""

from __future__ import annotations

import torch
from torch import Tensor

import blockscale as bs
from blockscale.layouts import Layout

# Codes of scales within a few powers of two of 1.
SCALES = {"ue4m3": (0x28, 0x48), "e8m0": (120, 128), "e4m4": (0x50, 0xA0)}
_NO_LARGEST_EXPONENT = 0xBF  # of a float of eight bits: no NaN, no Inf


def random_weight(
    format: bs.Format,
    shape: tuple[int, ...],  # [..., n, k]
    layout: Layout,
    device: torch.device | str,
    seed: int = 0,
) -> bs.QTensor:
    generator = torch.Generator(device).manual_seed(seed)

    def random_bytes(low: int, high: int, stored: tuple[int, ...]) -> Tensor:
        return torch.randint(
            low, high, stored, dtype=torch.uint8, device=device, generator=generator
        )

    codes = random_bytes(0, 256, layout.code_storage_shape(format, shape))
    if format.element.bits == 8:
        codes &= _NO_LARGEST_EXPONENT
    scale = random_bytes(*SCALES[format.scale.name], layout.scale_storage_shape(format, shape))
    tensor_scale = torch.ones(shape[:-2], device=device) if format.has_tensor_scale else None
    table = torch.tensor(format.codebook, device=device) if format.is_codebook else None
    return bs.QTensor(format, shape, codes, scale, tensor_scale, table, layout).freeze()
