"""Quantised x on its way into the Hopper GEMM, run by the emulator: one launch decodes its rows,
and the product multiplies by their tensor scales at its end."""

import shutil
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.contract import Parts
from blockscale.kernels.dequantize import cuda
from blockscale.kernels.matmul import sm90_gemm
from blockscale.kernels.matmul.fragments import product
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.layouts import canonical
from blockscale.numerics import dequantize_rows
from blockscale.ops.operand import as_rows
from blockscale.problem import Kind
from blockscale.runtime import gpu
from native.emulated_products import lossless, problem_of, run
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled
from products import exact

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")

CODED = [bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP6_E3M2, bs.MXFP8, bs.MXFP8_E5M2]


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product, cuda)
    maps_on_the_host(monkeypatch)


@pytest.mark.parametrize("format", CODED, ids=str)
def test_every_code_under_every_scale(format):
    """Bit for bit as float32 and one rounding give it: subnormals, infinities, and the one NaN."""
    values, blocks = 1 << format.element.bits, max(1, (1 << format.element.bits) // format.block)
    codes = torch.arange(blocks * format.block) % values
    codes = codes.to(torch.uint8).expand(256, -1)
    scale = torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, blocks)
    place, shape = canonical(format), (256, codes.shape[1])
    packed = place.pack_codes(codes, format)
    assert "BS_EXACT" in dict(
        cuda.decoder(str(Kind(format, place)), "bfloat16", scaled=False, numbers=1).defines
    )
    out = torch.empty(1, *shape, dtype=torch.bfloat16)
    cuda.decode(
        str(Kind(format, place)), Parts(packed[None], scale.contiguous()[None], None, None), out
    )
    expected = dequantize_rows(codes, scale, format, None, None, torch.bfloat16)
    assert torch.equal(out[0].view(torch.int16), expected.view(torch.int16))


def scaled_x(m, k):
    """Sums of a row are exact in float32, and its scale is a power of two."""
    q, _ = lossless(bs.NVFP4, m, k)
    return replace(q, tensor_scale=2.0 ** torch.randint(-3, 4, (m,)))


def problem_with(x, n, out="float32", sms=3, **facts):
    kind = str(Kind(x.format, canonical(x.format)))
    device = replace(gpu("h200"), sms=sms)
    return problem_of(
        bs.NVFP4, *x.shape[:1], n, x.shape[1], out=out, x=kind, device=device, **facts
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("split", [False, True])
def test_rows_have_scales_of_their_own(schedule, split):
    """Tiles of several chunks; of parts of tiles, some are not stored. The last tile is short."""
    x = scaled_x(170, 512)
    q, w = lossless(bs.NVFP4, 250, 512)
    config = Config(160, warpgroups=2, tiles_per_warp=1, stages=3, cluster=1, split=split)
    with scheduled(schedule):
        y = run(sm90_gemm, problem_with(x, 250), config, (w,), as_rows(x.operand))
    assert torch.equal(y.double(), exact(x) @ exact(q).mT)


@pytest.mark.parametrize("schedule", SCHEDULES[1:], ids=str)
def test_scales_of_one_tile_after_another(schedule):
    """A CTA has several tiles: scales of the next one come to where those of the last one were."""
    x = scaled_x(300, 256)
    q, w = lossless(bs.NVFP4, 250, 256)
    config = Config(96, warpgroups=2, tiles_per_warp=1, stages=3, cluster=1)
    with scheduled(schedule):
        y = run(sm90_gemm, problem_with(x, 250, out="bfloat16"), config, (w,), as_rows(x.operand))
    assert torch.equal(y, (exact(x) @ exact(q).mT).bfloat16())


def test_ragged_groups_and_rows_of_none():
    x, sizes = scaled_x(90, 512), torch.tensor([40, 0, 45])
    q, w = lossless(bs.NVFP4, 3, 70, 512)
    config = Config(64, warpgroups=2, tiles_per_warp=1, stages=3, cluster=1)
    facts = {"groups": 3, "ragged": True, "verb": "grouped_matmul"}
    y = run(sm90_gemm, problem_with(x, 70, **facts), config, (w,), as_rows(x.operand), sizes=sizes)
    assert torch.equal(y[:40].double(), exact(x)[:40] @ exact(q)[0].mT)
    assert torch.equal(y[40:85].double(), exact(x)[40:85] @ exact(q)[2].mT)
    assert (y[85:] == 0).all()
