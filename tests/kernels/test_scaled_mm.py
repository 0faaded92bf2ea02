"""Products by torch's scaled_mm: what it is handed is what torch documents, and says what the
operands say. No GPU that has it is here: torch's own checks see fake tensors, and an emulation
decodes the very arguments."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import blockscale as bs
from blockscale.kernels.matmul import scaled_mm
from blockscale.layouts import Layout
from blockscale.numerics import cast
from blockscale.ops import answers, example
from blockscale.ops.proof import subject
from blockscale.ops.proof.check import find_failure
from blockscale.problem import Kind
from blockscale.runtime import gpu, torch_private

CPU = torch.device("cpu")
FORMATS = (bs.NVFP4, bs.MXFP4, bs.MXFP8)
BLOCKED, ROWS = Layout("bits", "blocked"), Layout("bits", "rows")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def problem(format, verb="matmul", x=BLOCKED, **changes):
    placed = str(Kind(format, x))
    found = example(verb, format, gpu("b200"), m=16, x=placed, layout=BLOCKED)
    return replace(found, **{"x": placed, **changes})


def decoded(values):
    """float64 [rows, k] of torch's float4 or float8: of float4 the low half of a byte is first."""
    if values.dtype != torch.float4_e2m1fn_x2:
        return values.double()
    both = values.view(torch.uint8)
    codes = torch.stack((both & 15, both >> 4), -1).flatten(-2)
    return (E2M1[(codes & 7).long()] * torch.where(codes > 7, -1.0, 1.0)).double()


def scales(flat, rows, columns):
    """float64 [rows, columns]: row r, column c of 128 x 4 atoms, which run along columns first."""
    r, c = torch.arange(rows)[:, None], torch.arange(columns)
    atom = r // 128 * -(-columns // 4) + c // 4
    at = atom * 512 + r % 32 * 16 + r // 32 % 4 * 4 + c % 4
    return flat.view(torch.uint8)[at].view(flat.dtype).double()


class Emulated:
    """What torch documents, in float64, of the arguments that it is handed."""

    def __init__(self):
        self.calls = []

    def __call__(self, a, b, scale_a, scale_b, out):
        self.calls.append((a, b, scale_a, scale_b, out))
        block = 16 if scale_a.dtype == torch.float8_e4m3fn else 32
        x, w = decoded(a), decoded(b.t())
        for values, scale in ((x, scale_a), (w, scale_b)):
            every = scales(scale, len(values), values.shape[1] // block)
            values *= every.repeat_interleave(block, 1)
        out.copy_(cast(x @ w.T, out.dtype))


def finish(sums, out, activation=None, x_scale=None, factor=1.0):
    """The epilogue, which is CUDA."""
    branches = []
    for value, scale, bias in sums:
        y = value.double()
        y = y if x_scale is None else y * x_scale[..., None].double()
        y = y if scale is None else y * scale[:, None, None].double()
        branches.append(y if bias is None else y + bias[:, None].double())
    out.copy_(cast(activation(*branches) if activation else branches[0], out.dtype))


@pytest.fixture
def torch_there(monkeypatch):
    emulated = Emulated()
    monkeypatch.setattr(scaled_mm, "multiply", emulated)
    monkeypatch.setattr(scaled_mm, "finish", finish)
    monkeypatch.setattr(subject, "_ROWS", (1, 7))
    monkeypatch.setattr(subject, "_ROWS_OF_LARGER", (130,))
    return emulated


@pytest.mark.parametrize("x", [BLOCKED, ROWS], ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_what_torch_is_handed_says_what_the_operands_say(torch_there, format, x):
    assert find_failure(scaled_mm, problem(format, x=x), None, CPU) is None
    assert torch_there.calls


@pytest.mark.parametrize("x", [BLOCKED, ROWS], ids=str)
@pytest.mark.parametrize("verb", ["gated_matmul", "grouped_matmul", "grouped_gated_matmul"])
def test_every_verb(torch_there, verb, x):
    assert find_failure(scaled_mm, problem(bs.NVFP4, verb, x), None, CPU) is None


@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32"])
def test_every_output(torch_there, out):
    assert find_failure(scaled_mm, problem(bs.MXFP8, out=out), None, CPU) is None


@pytest.mark.parametrize("format", [bs.NVFP4, bs.MXFP8], ids=str)
def test_torch_takes_every_argument(torch_there, format):
    """By the checks that it has for fake tensors: strides, dtypes, numbers of scales."""
    find_failure(scaled_mm, problem(format), None, CPU)
    shapes = {tuple(a.shape) for a, *_ in torch_there.calls}
    assert len(shapes) > 2
    with FakeTensorMode():
        for *operands, out in torch_there.calls:
            fake = [
                torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cuda")
                for each in operands
            ]
            y = torch._scaled_mm(*fake, out_dtype=out.dtype)
            assert (y.shape, y.dtype) == (out.shape, out.dtype)


def test_nothing_of_the_weights_is_copied(torch_there):
    """Nor the scales of x, where they are blocked."""
    asked = replace(problem(bs.NVFP4), m=130, n=256, k=256, bias=False)
    w = bs.quantize(torch.randn(256, 256), bs.NVFP4).pack("blocked")
    x = bs.quantize(torch.randn(130, 256), bs.NVFP4, tensor_scale=torch.ones(130)).pack("blocked")
    weights = scaled_mm.Parts(w.codes[None], w.scale[None], w.tensor_scale.reshape(1), None)
    given = scaled_mm.Parts(x.codes, x.scale[None], x.tensor_scale, None)
    out = torch.empty(130, 256, dtype=torch.bfloat16)
    launch = scaled_mm.bind(asked, scaled_mm.configs(asked)[0], (weights,))
    launch(given, (None,), None, out)
    ((a, b, scale_a, scale_b, _),) = torch_there.calls
    assert a.data_ptr() == x.codes.data_ptr()
    assert b.data_ptr() == w.codes.data_ptr()
    assert scale_a.data_ptr() == x.scale.data_ptr()
    assert scale_b.data_ptr() == w.scale.data_ptr()


def test_torch_writes_where_sums_are_results(torch_there):
    asked = replace(problem(bs.MXFP8), m=3, n=32, k=64)
    w = bs.quantize(torch.randn(32, 64), bs.MXFP8).pack("blocked")
    x = bs.quantize(torch.randn(3, 64), bs.MXFP8)
    out = torch.empty(3, 32, dtype=torch.bfloat16)
    rows = replace(asked, x=str(Kind(bs.MXFP8, ROWS)))
    weights = (scaled_mm.Parts(w.codes[None], w.scale[None], None, None),)
    launch = scaled_mm.bind(rows, scaled_mm.configs(rows)[0], weights)
    launch(scaled_mm.Parts(x.codes, x.scale, None, None), (None,), None, out)
    assert torch_there.calls[0][-1].data_ptr() == out.data_ptr()
    assert not launch.builds


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": gpu("h200")}, "which sm_90 cannot: sm_100 and newer"),
        ({"device": gpu("rtx4090")}, "which sm_89 cannot: sm_100 and newer"),
        ({"x": "bfloat16"}, "multiplies two quantised operands, and x is bfloat16: give x_format"),
        ({"x": str(Kind(bs.MXFP8, BLOCKED))}, "NVFP4, MXFP4, MXFP8, both operands alike"),
        ({"w": str(Kind(bs.NVFP4, ROWS))}, "w is in bits/rows: w.prepare"),
        ({"n": 200}, "takes n in multiples of 16 and k of 32, not 200 and 4096"),
        ({"k": 80}, "takes n in multiples of 16 and k of 32, not 14336 and 80"),
        ({"deterministic": True}, "leaves the order of sums to torch's library"),
    ],
)
def test_refusals(changes, said):
    assert said in scaled_mm.refuses(replace(problem(bs.NVFP4), **changes))


def test_without_either_name_it_refuses(monkeypatch):
    monkeypatch.delattr(torch, "_scaled_mm")
    monkeypatch.delattr(torch.nn.functional, "scaled_mm", raising=False)
    assert torch_private.find_scaled_mm() is None
    monkeypatch.setattr(scaled_mm, "multiply", None)
    assert "has no scaled_mm" in scaled_mm.refuses(problem(bs.NVFP4))


def test_the_public_name_serves_alone(monkeypatch):
    called = {}

    def public(*args, **options):
        called.update(args=args, options=options)
        return torch.ones(2, 16)

    monkeypatch.delattr(torch, "_scaled_mm")
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", public, raising=False)
    out = torch.empty(2, 16, dtype=torch.bfloat16)
    a = torch.zeros(2, 32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    flat = torch.zeros(512, dtype=torch.uint8)
    for dtype, kind in ((torch.float8_e4m3fn, "1x16"), (torch.float8_e8m0fnu, "1x32")):
        torch_private.find_scaled_mm()(a, a.t(), flat.view(dtype), flat.view(dtype), out)
        assert kind in str(called["args"][3])
        assert "SWIZZLE_32_4_4" in str(called["args"][-1])
        assert bool((out == 1).all())


def test_it_is_asked_after_the_kernels_of_this_library():
    names = [each.kernel for each in answers(problem(bs.NVFP4))]
    assert names.index("sm100_gemm") < names.index("scaled_mm") < names.index("cublas")
