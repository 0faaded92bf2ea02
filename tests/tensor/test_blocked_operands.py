"""Blocked scales come in as they are, and both operands of a product may have them."""

import sys
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.kernels import KERNELS
from blockscale.layouts import Layout, atom_view
from blockscale.runtime import device_of, gpu
from ways import Way

BLOCKED = Layout("bits", "blocked")
FORMATS = (bs.NVFP4, bs.MXFP4, bs.MXFP8, bs.MXFP6_E2M3)


@pytest.fixture
def blackwell(monkeypatch):
    """The CPU, said to be a B200, with the definition alone for products."""
    fake = replace(gpu("b200"), live=False)
    for name in ("blockscale.ops.matmul", "blockscale.tensor.qtensor", "blockscale.nn.packed"):
        monkeypatch.setattr(sys.modules[name], "device_of", lambda device: fake)
    for verb in ("matmul", "gated_matmul", "grouped_matmul"):
        monkeypatch.setitem(KERNELS, verb, (Decodes(), Reads(), KERNELS[verb][-1]))
    ops.choose.cache_clear()
    yield
    ops.choose.cache_clear()


class Reads:
    """A kernel that reads blocked scales of both operands, and leaves the work to the next."""

    NAME, met = "reads", []

    def reads(self, format, device):
        return BLOCKED if format.scale.bits == 8 and not format.is_codebook else None

    def refuses(self, problem):
        self.met.append((problem.x, problem.w))
        return "is a test"


class Decodes(Reads):
    """A kernel for plain x, which is asked first."""

    NAME = "decodes"

    def reads(self, format, device):
        return Layout("fragments", "fragments")


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_blocked_scales_come_in_without_a_copy(format):
    q = bs.quantize(torch.randn(2, 200, 96), format).pack("blocked")
    same = bs.QTensor.from_storage(
        format, q.codes, q.scale, tensor_scale=q.tensor_scale, layout="blocked"
    )
    assert same == q
    assert same.layout == BLOCKED
    assert same.scale.data_ptr() == q.scale.data_ptr()


@pytest.mark.parametrize("lead", [(), (1,), (3,)])
def test_the_permuted_view_comes_in_without_a_copy(lead):
    """[32, 4, rest_m, 4, rest_k, l], with torch's dtypes, as kernels of a contest are given it."""
    q = bs.quantize(torch.randn(*lead, 200, 96), bs.NVFP4).pack("blocked")
    storage = q.scale.view(lead[0] if lead else 1, -1)
    view = atom_view(storage, 200, 6).view(torch.float8_e4m3fn)
    codes = q.codes.view(torch.float4_e2m1fn_x2)
    same = bs.QTensor.from_storage(
        bs.NVFP4, codes, view, tensor_scale=q.tensor_scale, layout="blocked"
    )
    assert same == q
    assert same.scale.data_ptr() == q.scale.data_ptr()
    assert same.codes.data_ptr() == q.codes.data_ptr()


def test_what_would_have_to_be_copied_is_refused():
    q = bs.quantize(torch.randn(200, 96), bs.NVFP4).pack("blocked")
    view = atom_view(q.scale[None], 200, 6)
    copied = view.contiguous()
    with pytest.raises(ValueError, match="would have to be copied: give them as"):
        bs.QTensor.from_storage(bs.NVFP4, q.codes, copied, layout="blocked")
    with pytest.raises(ValueError, match=r"are a view \[32, 4, 2, 4, 2, 1\], got"):
        bs.QTensor.from_storage(bs.NVFP4, q.codes, view.transpose(2, 3), layout="blocked")
    with pytest.raises(ValueError, match="codes are bits or planes, not fragments"):
        bs.QTensor.from_storage(bs.NVFP4, q.codes, q.scale, layout="fragments/blocked")


@pytest.mark.parametrize("shapes", [((130, 64), (48, 64)), ((2, 130, 64), (2, 48, 64))])
def test_both_operands_blocked(shapes):
    x, w = (bs.quantize(torch.randn(*shape), bs.NVFP4) for shape in shapes)
    w = w.pack("blocked")
    for way in (Way("cpu"), Way("reference")):
        with way.only():
            assert torch.equal(bs.matmul(x.pack("blocked"), w), bs.matmul(x, w))


def test_experts_with_blocked_rows():
    x, w = (bs.quantize(torch.randn(*shape), bs.MXFP8) for shape in ((140, 64), (3, 48, 64)))
    sizes = torch.tensor([5, 0, 130])
    args = (w.pack("blocked"), sizes)
    y = bs.grouped_matmul(x.pack("blocked"), *args, out_dtype=torch.float32)
    assert torch.equal(y, bs.grouped_matmul(x, *args, out_dtype=torch.float32))


def test_rows_that_are_not_the_matrices_of_the_product_are_refused():
    """Each matrix has its scales padded, so two of them are not one of twice the rows."""
    x, w = bs.quantize(torch.randn(2, 3, 64), bs.NVFP4), bs.quantize(torch.randn(48, 64), bs.NVFP4)
    with pytest.raises(ValueError, match="x is packed as bits/blocked"):
        bs.matmul(x.pack("blocked"), w.pack("blocked"))


@pytest.mark.parametrize("format", [bs.NVFP4, bs.MXFP8], ids=str)
def test_on_blackwell_x_is_quantised_to_what_tensor_cores_read(blackwell, format):
    w = bs.quantize(torch.randn(48, 64), format)
    ready = w.prepare(x_format=format)
    assert ready.layout == BLOCKED
    assert w.prepare().layout.scales == "fragments"
    Reads.met.clear()
    x = torch.randn(2, 5, 64)
    y = bs.matmul(x, ready, x_format=format)
    assert Reads.met[-1] == (f"{format.spec}@bits/blocked",) * 2
    assert torch.equal(y, bs.matmul(x, w, x_format=format))
    batch = bs.quantize(torch.randn(2, 48, 64), format)
    y = bs.matmul(x, batch.prepare(x_format=format), x_format=format, out_dtype=torch.float32)
    assert torch.equal(y, bs.matmul(x, batch, x_format=format, out_dtype=torch.float32))


def test_a_given_tensor_scale_of_blocked_x(blackwell):
    w, x = bs.quantize(torch.randn(48, 64), bs.NVFP4), torch.randn(5, 64)
    options = {"x_format": bs.NVFP4, "x_tensor_scale": 0.01}
    assert torch.equal(
        bs.matmul(x, w.prepare(x_format=bs.NVFP4), **options), bs.matmul(x, w, **options)
    )


def test_a_module_prepares_for_its_inputs(blackwell):
    layer = torch.nn.Linear(64, 48)
    packed = bs.nn.Linear.from_linear(layer, bs.NVFP4, x_format=bs.NVFP4)
    x = torch.randn(3, 64)
    y = packed(x)
    assert packed.weight.layout == BLOCKED
    packed(x)
    assert torch.equal(y, bs.linear(x, packed.weight.pack("bits/rows"), layer.bias,
                                    x_format=bs.NVFP4))  # fmt: skip


def test_elsewhere_nothing_changes():
    device = device_of(torch.device("cpu"))
    for format in FORMATS:
        assert ops.prepared_layout(format, device, format) == ops.prepared_layout(format, device)
    hopper, b200 = gpu("h200"), gpu("b200")
    assert ops.prepared_layout(bs.NVFP4, hopper, bs.NVFP4).scales == "fragments"
    assert ops.prepared_layout(bs.NVFP4, b200).scales == "fragments"
    assert ops.prepared_layout(bs.NVFP4, b200, bs.NVFP4) == BLOCKED
    assert ops.prepared_layout(bs.NVFP4, b200, bs.MXFP8).scales == "fragments"
    assert ops.prepared_layout(bs.KBIT4, b200, bs.NVFP4).scales == "fragments"
