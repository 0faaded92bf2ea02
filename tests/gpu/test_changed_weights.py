"""Weights that are moved or written to between calls, on a GPU. Skipped where there is none.

From Hopper on, a product may start before the kernel ahead in the stream has ended. The writer of
these tests lets it start, waits for milliseconds and then writes: whoever reads early, reads what
was there before.
"""

import ctypes
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.runtime import device_of
from blockscale.runtime.cuda import Build, current_stream, function

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SOURCE = str(Path(__file__).parent / "sources" / "slow_writer.cu")
N, K, EXPERTS = 512, 2048, 4
NANOSECONDS = 5_000_000  # far longer than the host needs for the next launch
OVERLAPS = torch.cuda.is_available() and device_of(torch.device("cuda", 0)).pdl
needs_overlap = pytest.mark.skipif(not OVERLAPS, reason="no programmatic dependent launch")


class Arguments(ctypes.Structure):
    _fields_ = (
        ("to", ctypes.c_void_p),
        ("from_", ctypes.c_void_p),
        ("bytes", ctypes.c_longlong),
        ("nanoseconds", ctypes.c_ulonglong),
    )


def write_slowly(tensor, other):
    """After the next kernel in the stream was allowed to start, and without torch's knowledge."""
    kernel = function(Build(SOURCE, "slow_writer"), tensor.device)
    told = Arguments(tensor.data_ptr(), other.data_ptr(), tensor.nbytes, NANOSECONDS)
    kernel.launch((4, 1, 1), 256, 0, current_stream(tensor.device), told)


def weights(experts=False, format=bs.NVFP4):
    shape = (EXPERTS, N, K) if experts else (N, K)
    return bs.quantize(torch.randn(shape), format).to("cuda").pack(fragments(format))


def rows(experts, m):
    return torch.randn(*((EXPERTS,) if experts else ()), m, K, device="cuda").bfloat16()


def settled(x, q):
    for _ in range(5):
        bs.matmul(x, q)
    torch.cuda.synchronize()
    return q


@needs_overlap
@pytest.mark.fault(
    "a kernel that lets its dependents start early writes weights without torch's knowledge",
    outcome="the product waits for it, unless the owner of the weights has frozen them",
)
@pytest.mark.parametrize("m", [1, 8, 40])
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_products_wait_for_whoever_writes_weights(m, experts, inference):
    with torch.inference_mode(inference):
        q, other, x = weights(experts), weights(experts), rows(experts, m)
        other.tensor_scale.copy_(q.tensor_scale)
        other.scale.copy_(q.scale)
        expected = bs.matmul(x, other)
        settled(x, q)
        write_slowly(q.codes, other.codes)
        assert torch.equal(bs.matmul(x, q), expected)


@needs_overlap
def test_a_promise_that_is_broken_is_not_noticed():
    """Else the writer would be too quick for the tests around this one to show anything."""
    q, other, x = weights().freeze(), weights(), rows(experts=False, m=1)
    expected = bs.matmul(x, q.clone())
    settled(x, q)
    write_slowly(q.codes, other.codes)
    y = bs.matmul(x, q)
    torch.cuda.synchronize()
    new = bs.matmul(x, q.clone())
    assert not torch.equal(new, expected)
    assert not torch.equal(y, new)


@needs_overlap
@pytest.mark.parametrize("m", [1, 40])
def test_frozen_weights_may_be_written_to_if_torch_is_told(m):
    q, other, x = weights().freeze(), weights(), rows(experts=False, m=m)
    other.tensor_scale.copy_(q.tensor_scale)
    other.scale.copy_(q.scale)
    expected = bs.matmul(x, other)
    settled(x, q)
    write_slowly(q.codes, other.codes)
    torch.autograd.graph.increment_version(q.codes)
    assert torch.equal(bs.matmul(x, q), expected)


@needs_overlap
@pytest.mark.parametrize("format", [bs.KBIT4, bs.KBIT5], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_products_of_many_rows_wait_for_whoever_writes_a_codebook(format, frozen):
    """Tables are brought into shared memory before the kernel ahead has ended."""
    q, x = weights(format=format), rows(experts=False, m=300)
    other = q.clone()
    other.codebook.copy_(torch.linspace(-0.5, 1.0, other.codebook.numel()))
    expected = bs.matmul(x, other)
    q = q.freeze() if frozen else q
    settled(x, q)
    write_slowly(q.codebook, other.codebook)
    if frozen:
        torch.autograd.graph.increment_version(q.codebook)
    assert torch.equal(bs.matmul(x, q), expected)


def by_data(tensor, other):
    tensor.data = other.clone()


def by_set(tensor, other):
    tensor.set_(other.clone())


def by_resize(tensor, other):
    tensor.untyped_storage().resize_(2 * tensor.nbytes)
    tensor.copy_(other)


def by_copy(tensor, other):
    tensor.copy_(other)


def by_copy_of_data(tensor, other):
    tensor.data.copy_(other)


MOVES = [by_data, by_set, by_resize]
WRITES = [by_copy, by_copy_of_data]


@pytest.mark.fault(
    "weights on a GPU are moved or written to in any of torch's ways between calls",
    outcome="the next product has the new weights",
)
@pytest.mark.parametrize("change", [*MOVES, *WRITES])
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("format", [bs.NVFP4, bs.KBIT4], ids=str)
def test_weights_that_change_are_seen(change, experts, frozen, format):
    if frozen and change is by_copy_of_data:
        pytest.skip("that is what freezing promises not to do")
    q, other, x = weights(experts, format), weights(experts, format), rows(experts, 4)
    q = q.freeze() if frozen else q
    if other.codebook is not None:
        other.codebook.copy_(torch.linspace(-0.5, 1.0, 16))  # whose halves are no mirror images
    expected = bs.matmul(x, other)
    settled(x, q)
    for mine, theirs in zip(q.tensors, other.tensors, strict=True):
        change(mine, theirs)
    filler = torch.full((1 << 24,), 255, dtype=torch.uint8, device="cuda")  # takes freed memory
    for _ in range(5):
        assert torch.equal(bs.matmul(x, q), expected)
    del filler


@pytest.mark.parametrize("format", [bs.NVFP4, bs.KBIT4, bs.KBIT5], ids=str)
def test_copies_in_inference_mode_are_seen(format):
    with torch.inference_mode():
        q, other, x = weights(format=format), weights(format=format), rows(experts=False, m=4)
        if other.codebook is not None:
            other.codebook.copy_(torch.linspace(-0.5, 1.0, other.codebook.numel()))
        expected = bs.matmul(x, other)
        settled(x, q)
        for mine, theirs in zip(q.tensors, other.tensors, strict=True):
            mine.copy_(theirs)
        assert torch.equal(bs.matmul(x, q), expected)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("change", WRITES)
def test_a_graph_sees_what_is_written_where_it_was_captured(frozen, change):
    q, other, x = weights(), weights(), rows(experts=False, m=4)
    q = q.freeze() if frozen else q
    expected = bs.matmul(x, other)
    settled(x, q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bs.matmul(x, q)
    for mine, theirs in zip(q.tensors, other.tensors, strict=True):
        change(mine, theirs)
    graph.replay()
    assert torch.equal(y, expected)


def misaligned(tensor, by=1):
    memory = torch.empty(tensor.nbytes + by, dtype=torch.uint8, device="cuda")
    return memory[by:].view(tensor.shape).copy_(tensor)


@pytest.mark.fault(
    "codes or scales start at an odd address on a GPU", outcome="the same bits, by way of a copy"
)
@pytest.mark.parametrize("part", ["codes", "scale"])
@pytest.mark.parametrize("format", [bs.NVFP4, bs.MXFP8, bs.MXFP6_E2M3, bs.KBIT4], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_views_at_odd_addresses(part, format, packed):
    q = bs.quantize(torch.randn(N, K, device="cuda"), format)
    q = q.pack(fragments(format)) if packed else q
    parts = {each: getattr(q, each) for each in ("codes", "scale", "tensor_scale", "codebook")}
    parts[part] = misaligned(parts[part])
    odd = bs.QTensor(q.format, q.shape, *parts.values(), q.layout)
    assert torch.equal(odd.dequantize(), q.dequantize())
    assert odd.prepare() == q.prepare()
    for m in (1, 8, 40, 300):
        x = rows(experts=False, m=m)
        for _ in range(4):
            assert torch.equal(bs.matmul(x, odd), bs.matmul(x, q))
    if packed:
        assert "copied at every call" in str(bs.explain(rows(experts=False, m=1), odd))
    assert bs.quantize(odd.dequantize(), format) == bs.quantize(q.dequantize(), format)
    torch.cuda.synchronize()


def test_numbers_at_odd_places_are_quantised_alike():
    x = torch.randn(1 + N * K, device="cuda")
    view = x[1:].view(N, K)
    for format in (bs.NVFP4, bs.KBIT4):
        assert bs.quantize(view, format) == bs.quantize(view.clone(), format)


@pytest.mark.fault(
    "a process lets TF32 in for its own products", outcome="float32 products here have none"
)
def test_tf32_does_not_enter():
    q, x = weights(), torch.randn(300, K, device="cuda")
    expected = bs.matmul(x, q)
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    try:
        settings.fp32_precision = "tf32"
        assert torch.equal(bs.matmul(x, q), expected)
        assert settings.fp32_precision == "tf32"
    finally:
        settings.fp32_precision = before


def test_numbers_that_stand_in_memory_with_the_other_sign():
    q, x = weights(), rows(experts=False, m=2)
    settled(x, q)
    assert torch.equal(bs.matmul(torch._neg_view(x), q), bs.matmul(-x, q))
