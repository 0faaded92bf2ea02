"""Names from other libraries reach the fused kernels of a GPU. Skipped where there is none."""

import pytest
import torch

import blockscale as bs
from blockscale import compat
from blockscale.tensor import QTensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
K_DIM, N = 512, 256


@pytest.fixture
def made(monkeypatch):
    """The QTensors that are made from here on."""
    check, found = QTensor.__post_init__, []

    def counted(q):
        found.append(q)
        check(q)

    monkeypatch.setattr(QTensor, "__post_init__", counted)
    return found


def tiled(w, k):
    packed, absmax, table = compat.quantize_kbit(w, k)
    return [*compat.repack_for_gemm(packed, absmax, K_DIM, N, k), table.clone()]


@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize("m", [1, 16])
def test_linear_nbit_decodes_no_panels(m, k):
    layer = torch.nn.Linear(K_DIM, N, device="cuda", dtype=torch.bfloat16)
    quantized = compat.LinearNbit.from_linear(layer, k=k)
    twin = bs.nn.Linear.from_linear(layer, bs.format(f"kbit{k}"))
    x = torch.randn(m, K_DIM, device="cuda", dtype=torch.bfloat16)
    assert torch.equal(quantized(x), twin(x))
    kernel = bs.explain(x, quantized.weight).kernel
    assert kernel == bs.explain(x, twin.weight).kernel
    assert kernel not in ("cublas", "reference")


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_one_qtensor_serves_repeated_products(k, made):
    w = torch.randn(N, K_DIM, device="cuda", dtype=torch.float16)
    weight = tiled(w, k)
    x = torch.randn(1, K_DIM, device="cuda", dtype=torch.float16)
    expected = bs.matmul(x, bs.quantize(w, bs.format(f"kbit{k}")).prepare())
    made.clear()
    for _ in range(5):
        assert torch.equal(compat.kbit_gemm(x, *weight, K_DIM, N, k), expected)
    assert len(made) == 1
    assert bs.explain(x, made[0]).kernel not in ("cublas", "reference")


@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_is_written_between_calls_is_seen(part):
    weight = tiled(torch.randn(N, K_DIM, device="cuda"), 4)
    x = torch.randn(1, K_DIM, device="cuda", dtype=torch.float16)
    changed = [each.clone() for each in weight]
    changed[part] = changed[part].flip(-1) if part < 2 else changed[part] / 2
    expected = compat.kbit_gemm(x, *changed, K_DIM, N, 4)
    for _ in range(5):
        compat.kbit_gemm(x, *weight, K_DIM, N, 4)
    weight[part].copy_(changed[part])
    assert torch.equal(compat.kbit_gemm(x, *weight, K_DIM, N, 4), expected)


def test_memory_is_given_back():
    weight = tiled(torch.randn(N, K_DIM, device="cuda"), 4)
    x = torch.randn(1, K_DIM, device="cuda", dtype=torch.float16)
    for _ in range(5):
        compat.kbit_gemm(x, *weight, K_DIM, N, 4)
    before = torch.cuda.memory_allocated()
    size = sum(part.nbytes for part in weight)
    weight.clear()
    assert torch.cuda.memory_allocated() <= before - size


def test_grouped_products_take_offsets_that_stay_on_the_gpu():
    w = torch.randn(3, N, K_DIM, device="cuda", dtype=torch.bfloat16)
    parts = [tiled(expert, 4) for expert in w]
    x = torch.randn(7, K_DIM, device="cuda", dtype=torch.bfloat16)
    offsets = torch.tensor([0, 2, 2, 7], device="cuda", dtype=torch.int32)
    stacks = [torch.stack([part[i] for part in parts]) for i in (0, 1)]
    expected = bs.grouped_matmul(x, bs.quantize(w, bs.KBIT4).prepare(), offsets.diff())
    arguments = (x, *stacks, parts[0][2], K_DIM, N, 4, offsets)
    assert torch.equal(compat.kbit_grouped_gemm(*arguments), expected)
    torch.cuda.set_sync_debug_mode("error")
    try:
        y = compat.kbit_grouped_gemm(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(y, expected)
    lists = [[part[i] for part in parts] for i in (0, 1)]
    rows = list(x.split([2, 0, 5]))
    assert torch.equal(
        torch.cat(compat.kbit_grouped_gemm(rows, *lists, parts[0][2], K_DIM, N, 4)), expected
    )
