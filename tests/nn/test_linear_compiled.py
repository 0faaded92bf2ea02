"""nn.Linear under torch.compile and torch.export."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import blockscale as bs
from blockscale.layouts import canonical
from nn.layers import FIELDS, FORMATS, layer_of


def compiled(module):
    return torch.compile(module, fullgraph=True, backend="aot_eager")


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_it_compiles_in_one_graph(format):
    layer, x = layer_of(format, x_format=bs.MXFP8), torch.randn(3, 64)
    expected = copy.deepcopy(layer)(x)
    assert torch.equal(compiled(layer)(x), expected)
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiler_meets_a_prepared_layer(foreign):
    layer, x = layer_of(bs.KBIT4), torch.randn(3, 64)
    expected = copy.deepcopy(layer)(x)
    counter = CompileCounter()
    run = torch.compile(layer, fullgraph=True, backend=counter)
    assert torch.equal(run(x), expected)
    assert layer.weight.layout == foreign(bs.KBIT4, "cpu")
    assert counter.op_count == 1  # the product: nothing is packed in the graph
    assert torch.equal(run(x), expected)
    assert counter.frame_count == 1


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_layer_sees_what_is_loaded():
    layer, other, x = layer_of(bs.KBIT4), layer_of(bs.KBIT4), torch.randn(3, 64)
    run = compiled(layer)
    run(x)
    layer.load_state_dict(other.state_dict())
    assert torch.equal(run(x), other(x))


@pytest.mark.usefixtures("_fresh_compiler")
def test_gradients_of_a_compiled_layer():
    layer, x = layer_of(bs.NVFP4), torch.randn(3, 64)
    eager, traced = (x.clone().requires_grad_() for _ in range(2))
    layer(eager).square().sum().backward()
    compiled(layer)(traced).square().sum().backward()
    torch.testing.assert_close(traced.grad, eager.grad)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("used", [False, True])
def test_it_exports(foreign, used, strict):
    layer, x = layer_of(bs.KBIT4), torch.randn(3, 64)
    if used:
        layer(x)
    exported = torch.export.export(layer, (x,), strict=strict)
    assert set(exported.graph_signature.buffers) == {f"weight_{field}" for field in FIELDS}
    assert torch.equal(exported.module()(x), bs.linear(x, layer.weight, layer.bias))
    assert (layer.weight.layout == canonical(bs.KBIT4)) == (not used)
