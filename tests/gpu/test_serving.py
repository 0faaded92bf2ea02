"""What a server does before and while it captures graphs. Skipped where there is no GPU."""

import pytest
import torch

import blockscale as bs
from blockscale.integrations.engines.packed import Memory, PackedLinear
from blockscale.integrations.vllm.startup import Startup
from blockscale.runtime.cuda import functions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SIZES = (1, 4, 24)
TOP = 2  # experts of a token


def linear():
    parts = [bs.quantize(torch.randn(n, 512), "nvfp4") for n in (512, 128, 128)]
    layer = PackedLinear([part.to("cuda") for part in parts])
    layer.prepare()
    return layer


def experts():
    gate, up = (bs.quantize(torch.randn(4, 256, 512), bs.MXFP4).to("cuda") for _ in range(2))
    layer = bs.nn.Experts.from_qtensors(
        gate, up, bs.quantize(torch.randn(4, 512, 256), bs.MXFP4).to("cuda")
    )
    layer.prepare()
    return layer


def arguments(layer, m):
    x = torch.randn(m, 512, device="cuda").bfloat16()
    if isinstance(layer, PackedLinear):
        return (x,)
    ids = torch.randint(0, 4, (m, TOP), device="cuda")
    return x, ids, torch.rand(m, TOP, device="cuda").bfloat16()


@pytest.mark.parametrize("make", [linear, experts])
def test_nothing_is_compiled_while_graphs_are_captured(make, monkeypatch):
    layer = make()
    startup = Startup("blockscale", SIZES, torch.bfloat16, is_speaker=True)
    startup.expect("layer")
    startup.ready("layer", layer, 1 if isinstance(layer, PackedLinear) else TOP)

    def refuse(*_, **__):
        raise AssertionError("compiled during capture")

    monkeypatch.setattr(functions, "cubin", refuse)
    for m in SIZES:
        given = arguments(layer, m)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            captured = layer(*given)
        graph.replay()
        with torch.inference_mode():
            assert torch.equal(captured, layer(*given))


def test_a_captured_graph_sees_reloaded_weights():
    layer, fresh = linear(), linear()
    memory = Memory(layer)
    x = torch.randn(4, 512, device="cuda").bfloat16()
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        captured = layer(x)
    memory.overwrite(fresh)
    torch.cuda.synchronize()
    graph.replay()
    with torch.inference_mode():
        assert torch.equal(captured, fresh(x))
