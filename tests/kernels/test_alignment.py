"""CUDA kernels read words of up to 16 bytes: what does not start at a multiple is copied."""

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.kernels.contract import Parts
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.dequantize import cuda as dequantize
from blockscale.kernels.dequantize import cuda_fragments
from blockscale.kernels.matmul import stream
from blockscale.kernels.matmul.fragments import product as fragment_product
from blockscale.kernels.repack import cuda as repack
from blockscale.layouts import canonical
from blockscale.ops.operand import as_groups
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu
from blockscale.tensor.call import describe_call

N, K = 64, 128


def shifted(tensor, by=1):
    """The same numbers, `by` bytes behind where torch's memory starts."""
    memory = torch.empty(tensor.nbytes + by, dtype=torch.uint8)
    if tensor.dtype == torch.uint8:
        return memory[by:].view(tensor.shape).copy_(tensor)
    # Not by `view`, which refuses this; other libraries hand such memory over.
    return (
        torch.frombuffer(memory.numpy(), dtype=tensor.dtype, offset=by)
        .reshape(tensor.shape)
        .copy_(tensor)
    )


@pytest.fixture
def launched(monkeypatch):
    """The arguments of every launch."""
    found = []

    class Kernel:
        def __init__(self, build, device):
            pass

        def launch(self, grid, threads, shared, stream, arguments, *more):
            found.append(arguments)

    for module in (fragment_product, dequantize, cuda_fragments, repack):
        monkeypatch.setattr(module, "function", Kernel)
        monkeypatch.setattr(module, "current_stream", lambda device: 0)
    return found


def product(format, out="bfloat16"):
    return Problem(
        verb="matmul",
        m=1,
        n=N,
        k=K,
        x="bfloat16",
        w=str(Kind(format, fragments(format))),
        out=out,
        device=gpu("sm_90"),
    )


PARTS = ["codes", "scale", "tensor_scale", "codebook"]


@pytest.mark.fault(
    "a part of a weight starts at an odd address on a GPU",
    outcome="it is copied at every call, which `explain` says; never a device fault",
)
@pytest.mark.parametrize("part", PARTS)
def test_products_copy_what_is_not_aligned(launched, part):
    q = bs.quantize(torch.randn(N, K), bs.KBIT4).pack(fragments(bs.KBIT4))
    parts = as_groups(q.operand)
    odd = parts._replace(**{part: shifted(getattr(parts, part))})
    asked = product(bs.KBIT4)
    launch = stream.bind(asked, stream.configs(asked)[0], (odd,))
    launch(torch.randn(1, K).bfloat16(), (None,), None, torch.empty(1, N).bfloat16())
    weight = launched[-1].weight[0]
    assert (
        weight.codes % 16 == weight.scale % 16 == weight.tensor_scale % 4 == weight.table % 4 == 0
    )
    least = 16 if part in ("codes", "scale") else 4
    assert odd.why_copied(16) == f"{part} starts at an address that is no multiple of {least}"
    assert parts.why_copied(16) is None


def test_a_product_that_copies_has_no_plan_and_explain_says_so():
    q = bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4))
    odd = bs.QTensor(q.format, q.shape, shifted(q.codes), q.scale, q.tensor_scale, None, q.layout)
    asked = product(bs.NVFP4)
    choice = ops.Choice(stream, stream.configs(asked)[0], "by rule")
    call = describe_call(
        torch.randn(1, K).bfloat16(),
        [odd],
        [None],
        group_sizes=None,
        activation=None,
        x_format=None,
        out_dtype=None,
    )
    why = ops.why_copied(call, choice)
    assert why == "codes starts at an address that is no multiple of 16"
    told = str(ops.explain(call.problem(), torch.device("cpu"), why))
    assert f"copied at every call: {why}; q.clone() once mends that" in told
    assert odd.clone() == q
    assert as_groups(odd.clone().operand).why_copied(16) is None


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "format", [bs.NVFP4, bs.MXFP8, bs.MXFP6_E2M3, bs.KBIT4, bs.BNB_NF4], ids=str
)
@pytest.mark.parametrize("packed", [False, True])
def test_conversions_copy_what_is_not_aligned(launched, format, part, packed):
    layout = fragments(format) if packed else canonical(format)
    if layout is None:
        pytest.skip(f"{format} has no order of fragments")
    q = bs.quantize(torch.randn(N, K), format).pack(layout)
    codes, scale, tensor_scale, codebook = as_groups(q.operand)
    rows = None if tensor_scale is None else tensor_scale[:, None].expand(1, N)
    parts = Parts(codes, scale, rows, codebook)
    if getattr(parts, part) is None:
        pytest.skip(f"{format} has no {part}")
    odd = parts._replace(**{part: shifted(getattr(parts, part))})
    out = torch.empty(1, N, K)
    if packed:
        cuda_fragments.decode(str(Kind(format, layout)), odd, out)
        told = launched[-1]
        found = [told.codes % 4, told.scale % 4, (told.tensor_scale or 0) % 4, told.table % 4]
    else:
        dequantize.decode(str(Kind(format, layout)), odd, out)
        told, bits = launched[-1], format.element.bits
        width = 1 if layout.codes == "planes" else bits & -bits
        found = [told.codes.data % width, told.scales.data % (format.scale.bits // 8)]
        found += [(told.tensor_scale.data or 0) % 4, (told.codebook or 0) % 4]
    assert found == [0, 0, 0, 0]


def test_bit_planes_are_copied_before_they_are_packed(launched):
    q = bs.quantize(torch.randn(N, K), bs.KBIT4)
    problem = Problem(
        verb="repack",
        m=N,
        n=0,
        k=K,
        x=str(Kind(bs.KBIT4, q.layout)),
        w=str(Kind(bs.KBIT4, fragments(bs.KBIT4))),
        out="uint8",
        device=gpu("sm_90"),
    )
    launch = repack.bind(problem, repack.configs(problem)[0])
    launch(shifted(q.codes)[None], shifted(q.scale)[None])
    assert launched[-1].codes % 4 == 0
