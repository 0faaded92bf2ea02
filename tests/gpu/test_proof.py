"""Proofs on a GPU: what the tests have shown, proofs show too, also in a process of their own."""

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.formats import CATALOGUE
from blockscale.ops.proof import standing
from blockscale.ops.proof.check import find_failure
from blockscale.runtime import device_of, proven
from products import check, exact

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setattr(proven._kept, "folder", lambda: tmp_path / "proven")
    standing.forget()
    ops.choose.cache_clear()
    yield
    standing.forget()
    ops.choose.cache_clear()


def listed(*names):
    device = device_of(torch.device("cuda", 0))
    return ops.to_prove(device, [CATALOGUE[name] for name in names], ops.VERBS)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "kbit4"])
def test_every_kernel_passes(name):
    for kernel, problem, _ in listed(name):
        told = f"{kernel.NAME}: {problem}"
        assert find_failure(kernel, problem, None, torch.device("cuda", 0)) is None, told


def test_an_unproven_kernel_is_proven_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(standing, "tested", lambda *_: None)
    source = bs.quantize(torch.randn(256, 256), bs.NVFP4)
    q, x = source.prepare("cuda"), torch.randn(4, 256).bfloat16().cuda()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="before the capture"), torch.cuda.graph(graph):
        bs.matmul(x, q)
    torch.cuda.synchronize()
    y = bs.matmul(x, q)
    check(y.cpu(), x.cpu().double(), exact(source), y.dtype, x.dtype)
    assert {each.failure for each in proven.proofs().values()} == {""}
    assert "proven   on this GPU" in str(bs.explain(x, q))
