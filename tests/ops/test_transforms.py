"""torch.func takes gradients of products: the same bits as torch.autograd, at every level."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import blockscale as bs

W, UP = (bs.quantize(torch.randn(48, 64) / 8, bs.NVFP4) for _ in range(2))
EXPERTS = bs.quantize(torch.randn(2, 48, 64) / 8, bs.KBIT4)
ROWS = bs.quantize(torch.randn(48, 64) / 8, bs.NVFP4, tensor_scale="row")
SIZES = torch.tensor([1, 3])
BIAS = torch.randn(48)
CALLS = {
    "matmul": lambda x: bs.matmul(x, W),
    "prepared": lambda x: bs.matmul(x, W.prepare()),
    "linear": lambda x: bs.linear(x, W, BIAS),
    "quantised x": lambda x: bs.matmul(x, W, x_format=bs.NVFP4),
    "gated": lambda x: bs.gated_matmul(x, W, UP, gate_bias=BIAS),
    "grouped": lambda x: bs.grouped_matmul(x, EXPERTS, SIZES),
    "scales per row": lambda x: bs.matmul(x, ROWS),
}


@pytest.fixture
def x():
    return torch.randn(4, 64)


@pytest.fixture(params=CALLS)
def scalar(request):
    return lambda x: CALLS[request.param](x).sin().sum()


def by_autograd(function):
    """What torch.func.grad is, of tensors that remember."""

    def gradient(x):
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, create_graph=True)[0]

    return gradient


def cosines(function):
    return lambda x: function(x).cos().sum()


def test_gradients_of_gradients(scalar, x):
    mine, theirs = scalar, scalar
    for _ in range(3):
        mine, theirs = grad(mine), by_autograd(theirs)
        found, wanted = mine(x), theirs(x)
        assert found.abs().max() > 0
        assert torch.equal(found, wanted.detach())
        mine, theirs = cosines(mine), cosines(theirs)


@pytest.mark.parametrize("later", [torch.enable_grad, torch.no_grad])
def test_a_backward_may_come_when_its_transform_has_ended(scalar, x, later):
    _, backward = vjp(scalar, x)
    wanted = by_autograd(scalar)(x).detach()
    with later():
        assert all(torch.equal(backward(torch.ones(()))[0], wanted) for _ in range(2))


def test_autograd_may_take_gradients_of_a_transform(scalar, x):
    x.requires_grad_()
    (found,) = torch.autograd.grad(grad(scalar)(x).cos().sum(), x)
    assert torch.equal(found, by_autograd(cosines(by_autograd(scalar)))(x))


@pytest.mark.parametrize("verb", ["linear", "gated", "grouped"])
def test_biases_have_gradients(verb, x):
    calls = {
        "linear": (lambda b: bs.linear(x, W, b), BIAS),
        "gated": (lambda b: bs.gated_matmul(x, W, UP, up_bias=b), BIAS),
        "grouped": (lambda b: bs.grouped_matmul(x, EXPERTS, SIZES, b), torch.randn(2, 48)),
    }
    call, bias = calls[verb]
    found = grad(lambda b: call(b).sin().sum())(bias)
    assert torch.equal(found, by_autograd(lambda b: call(b).sin().sum())(bias))


def test_a_level_that_wants_no_gradient_passes_it_on(x):
    """The inner transform is about z; x belongs to the outer one."""

    def inner(x):
        return lambda z: (bs.matmul(2 * x + z.detach(), W).sum() * z).sin().sum()

    ones = torch.ones(4, 64)
    found = grad(lambda x: grad(inner(x))(ones).sum())(x)
    wanted = by_autograd(lambda x: by_autograd(inner(x))(ones).sum())(x)
    assert torch.equal(found, wanted.detach())


def test_layers_are_called_with_other_parameters(x):
    layer = bs.nn.Linear.from_linear(torch.nn.Linear(64, 48), bs.KBIT4)
    other = {"bias": torch.randn(48)}
    found = grad(lambda given: functional_call(layer, given, (x,)).sin().sum())(other)
    wanted = by_autograd(lambda b: bs.linear(x, layer.weight, b).sin().sum())(other["bias"])
    assert torch.equal(found["bias"], wanted)


def test_a_trace_of_a_transform_holds_the_ops(x):
    graph = make_fx(grad(lambda x: bs.matmul(x, W).sin().sum()))(x)
    assert {"blockscale.matmul.default", "blockscale.input_grad.default"} <= {
        str(node.target) for node in graph.graph.nodes
    }
    assert torch.equal(graph(2 * x), grad(lambda x: bs.matmul(x, W).sin().sum())(2 * x))


def test_what_has_no_rule_is_refused_rather_than_ignored(scalar, x):
    """Of each other, too: forward mode and batches under reverse mode, and reverse mode under
    these."""
    for batched in (vmap(grad(scalar)), grad(lambda x: vmap(scalar)(x).sum())):
        with pytest.raises(RuntimeError, match="Batching rule not implemented for blockscale::"):
            batched(x[None])
    with pytest.raises(RuntimeError, match="Batching rule not implemented for blockscale::"):
        jacrev(lambda x: scalar(x)[None] * torch.ones(2))(x)
    forward = "no derivative in forward mode"
    with pytest.raises(NotImplementedError, match=forward):
        jvp(grad(scalar), (x,), (x,))
    with pytest.raises(NotImplementedError, match=forward):
        grad(lambda x: jvp(scalar, (x,), (x,))[1])(x)
