"""Scale decoders of the GEMMs, compiled for the host: every code in every byte of a word."""

import shutil
from ctypes import c_int, c_void_p
from functools import cache
from pathlib import Path

import pytest
import torch

import blockscale as bs
from native.host_library import host_library

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
SOURCE = Path(__file__).with_name("scale_decoders.cpp")


@cache
def library():
    return host_library("-std=c++17", "-O1", "-w", SOURCE)


@pytest.mark.parametrize(
    ("function", "format"),
    [
        ("ue4m3", bs.NVFP4),
        ("e8m0", bs.MXFP4),
        ("e8m0_by_conversion", bs.MXFP4),  # as sm_100a and newer have it
        ("e4m4", bs.KBIT4),
    ],
)
def test_every_code_means_what_the_format_says(function, format):
    codes = torch.arange(256, dtype=torch.uint8)
    order = torch.stack([codes.roll(shift) for shift in range(4)], 1).contiguous()  # [256, 4]
    out = torch.empty(256, 4)
    decode = getattr(library(), function)
    decode.argtypes = (c_void_p, c_int, c_void_p)
    decode(order.data_ptr(), 256, out.data_ptr())
    values = torch.tensor(format.scale.values, dtype=torch.float32)
    assert torch.equal(out.nan_to_num(-1.0), values[order.long()].nan_to_num(-1.0))
