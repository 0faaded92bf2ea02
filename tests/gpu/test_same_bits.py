"""On a GPU: the same bits as on the CPU, and the same verbs. Skipped where there is none."""

import subprocess
import sys

import pytest
import torch

import blockscale as bs
from blockscale.kernels import KERNELS
from blockscale.numerics import rules_of
from blockscale.ops import choose

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def samples():
    gaussian = torch.randn(64, 512)
    subnormal = torch.randint(0, 1 << 23, (8, 512), dtype=torch.int32).view(torch.float32)
    anything = torch.randint(-(2**31), 2**31 - 1, (64, 512), dtype=torch.int32).view(torch.float32)
    binades = gaussian * torch.exp2(torch.randint(-60, 60, (64, 1)))
    zeros = gaussian * (torch.rand(64, 512) < 0.02)
    return [gaussian, subnormal, anything, binades, zeros, gaussian.bfloat16(), gaussian.half()]


def same_bits(a, b):
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.cpu().view(kind), b.cpu().view(kind))


def test_quantize_and_dequantize_have_the_same_bits(fmt):
    for x in samples():
        for rule in rules_of(fmt):
            host, device = bs.quantize(x, fmt, scale=rule), bs.quantize(x.cuda(), fmt, scale=rule)
            for a, b in zip(host.tensors, device.tensors, strict=True):
                assert b.device.type == "cuda"
                assert same_bits(a, b), (rule, x.dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert same_bits(host.dequantize(dtype), device.dequantize(dtype))


def test_layouts_have_the_same_bytes(fmt):
    q = bs.quantize(torch.randn(2, 200, 512), fmt)
    for place in ("bits", "planes", "blocked"):
        if fmt.scale.bits == 32 and place == "blocked":
            continue
        host, device = q.pack(place), q.to("cuda").pack(place)
        assert same_bits(host.codes, device.codes)
        assert same_bits(host.scale, device.scale)


def close(a, b):
    """float64 sums in another order, then one cast: a unit in the last place at the most."""
    step = torch.finfo(b.dtype).eps
    return ((a.cpu().double() - b.double()).abs() <= 2 * step * b.double().abs() + 1e-30).all()


@pytest.fixture
def _the_definition_alone(monkeypatch):
    for verb, kernels in KERNELS.items():
        monkeypatch.setitem(KERNELS, verb, kernels[-1:])
    choose.cache_clear()
    yield
    choose.cache_clear()


@pytest.mark.usefixtures("_the_definition_alone")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_verb(fmt, dtype):
    w, up = (bs.quantize(torch.randn(3, 20, 256), fmt) for _ in range(2))
    x, sizes, bias = torch.randn(7, 256).to(dtype), torch.tensor([3, 0, 2]), torch.randn(20)
    d = [t.cuda() for t in (x, sizes, bias)]
    wd, upd = w.to("cuda"), up.to("cuda")
    assert close(bs.linear(d[0], wd[0], d[2]), bs.linear(x, w[0], bias))
    assert close(bs.matmul(d[0], wd[1], x_format=bs.MXFP8), bs.matmul(x, w[1], x_format=bs.MXFP8))
    assert close(bs.gated_matmul(d[0], wd[0], upd[0]), bs.gated_matmul(x, w[0], up[0]))
    assert close(bs.grouped_matmul(d[0], wd, d[1]), bs.grouped_matmul(x, w, sizes))
    grouped = bs.grouped_gated_matmul(d[0], wd, upd, d[1], "gelu")
    assert close(grouped, bs.grouped_gated_matmul(x, w, up, sizes, "gelu"))
    assert close(bs.matmul(d[0].expand(3, 7, 256), wd), bs.matmul(x.expand(3, 7, 256), w))


def test_tf32_does_not_reach_the_sum():
    w, x = bs.quantize(torch.randn(64, 512), bs.MXFP8).to("cuda"), torch.randn(9, 512).cuda()
    expected = bs.matmul(x, w)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert torch.equal(bs.matmul(x, w), expected)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_group_sizes_are_clipped_on_the_device(monkeypatch):
    w, x = bs.quantize(torch.randn(3, 8, 64), bs.NVFP4).to("cuda"), torch.randn(5, 64).cuda()
    too_many = torch.tensor([4, -2, 9]).cuda()
    y = bs.grouped_matmul(x, w, too_many)
    assert torch.equal(y, bs.grouped_matmul(x, w, torch.tensor([4, 0, 1]).cuda()))
    monkeypatch.setenv("BLOCKSCALE_CHECK", "1")
    with pytest.raises(ValueError, match=r"group_sizes\[1\] is negative"):
        bs.grouped_matmul(x, w, too_many)


def test_devices_must_match():
    w = bs.quantize(torch.randn(8, 64), bs.NVFP4)
    with pytest.raises(ValueError, match="x is on cuda:0 but w is on cpu"):
        bs.matmul(torch.randn(2, 64).cuda(), w)


def test_compile_and_gradients():
    w = bs.quantize(torch.randn(8, 64), bs.NVFP4).to("cuda")
    x = torch.randn(4, 64, device="cuda", requires_grad=True)
    y = torch.compile(lambda x: bs.matmul(x, w) * 2, fullgraph=True)(x)
    torch.testing.assert_close(y, bs.matmul(x, w) * 2)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * w.dequantize().sum(0).expand(4, 64))


def test_explain_on_the_gpu():
    w = bs.quantize(torch.randn(64, 128), bs.NVFP4).to("cuda")
    told = bs.explain(torch.randn(1, 128, device="cuda"), w)
    assert told.problem.target.startswith("sm_")
    assert told.ceilings.read_bytes_per_s > 1e11


def test_import_does_not_initialise_cuda():
    code = "import torch, blockscale; print(torch.cuda.is_initialized())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
