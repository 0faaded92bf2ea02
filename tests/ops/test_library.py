"""The torch.library ops: opcheck, torch.compile, gradients."""

import pytest
import torch
from torch.library import opcheck

import blockscale as bs
from blockscale import ops
from blockscale.numerics import parse_activation


def matmul_args(x, weights, biases=(None, None), sizes=None, activation="", x_format="", out=None):
    operand = x.operand if isinstance(x, bs.QTensor) else ops.plain(x)
    first = weights[0].operand
    up = weights[1].operand.tensors if len(weights) > 1 else []
    return (*operand, first.tensors, up, first.kind, first.shape, *biases, sizes, activation,
            x_format, [], None, out or torch.float32)  # fmt: skip


def weights(fmt, *shape):
    return [bs.quantize(torch.randn(*shape), fmt) for _ in range(2)]


FORMATS = [bs.NVFP4, bs.MXFP8, bs.KBIT3, bs.BNB_NF4]


@pytest.mark.parametrize("fmt_", FORMATS, ids=str)
def test_opcheck_matmul(fmt_):
    (w, _), x = weights(fmt_, 6, 64), torch.randn(3, 64, requires_grad=True)
    opcheck(ops.matmul, matmul_args(x, [w]))
    bias = torch.randn(6, requires_grad=True)
    opcheck(ops.matmul, matmul_args(x, [w], (bias, None), out=torch.bfloat16))
    opcheck(ops.matmul, matmul_args(x, [w], x_format=bs.MXFP8.spec))


def test_opcheck_matmul_of_two_quantized():
    (w, _), x = weights(bs.NVFP4, 6, 64), bs.quantize(torch.randn(3, 64), bs.MXFP8)
    opcheck(ops.matmul, matmul_args(x, [w]))


@pytest.mark.parametrize("fmt_", FORMATS[:3], ids=str)
def test_opcheck_the_other_verbs(fmt_):
    x, sizes = torch.randn(5, 64, requires_grad=True), torch.tensor([2, 0, 2])
    opcheck(ops.gated_matmul, matmul_args(x, weights(fmt_, 6, 64), activation="silu"))
    experts = weights(fmt_, 3, 6, 64)
    opcheck(ops.grouped_matmul, matmul_args(x, experts[:1], sizes=sizes))
    opcheck(
        ops.grouped_gated_matmul,
        matmul_args(x, experts, sizes=sizes, activation="gelu"),
    )


@pytest.mark.parametrize("fmt_", FORMATS, ids=str)
def test_opcheck_quantize_and_dequantize(fmt_):
    q = bs.quantize(torch.randn(4, 64), fmt_)
    table = list(fmt_.element.values) if fmt_.is_codebook else []
    for shape, per_row in (((2, 4, 64), False), ((4, 64), True)):
        args = (torch.randn(shape), q.operand.kind, table, "absmax", None, per_row)
        opcheck(ops.quantize, args)
    opcheck(ops.dequantize, (*q.operand, torch.bfloat16))


def test_schemas_hold_uint8_storage_and_strings():
    schema = str(torch.ops.blockscale.matmul.default._schema)
    assert "Tensor[] x, str x_kind, SymInt[] x_shape, Tensor[] w" in schema


# --- torch.compile ---


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("fmt_", [bs.NVFP4, bs.KBIT4], ids=str)
def test_every_verb_compiles_without_graph_breaks(fmt_):
    gate, up = weights(fmt_, 6, 64)
    experts, more = weights(fmt_, 3, 6, 64)
    x, sizes, bias = torch.randn(5, 64), torch.tensor([2, 0, 3]), torch.randn(6)

    def everything(x):
        return (
            bs.matmul(x, gate) * 2,
            bs.matmul(x, gate, x_format=bs.MXFP8, out_dtype=torch.bfloat16),
            bs.linear(x, gate, bias),
            bs.gated_matmul(x, gate, up, bs.swiglu_oai()),
            bs.grouped_matmul(x, experts, sizes),
            bs.grouped_gated_matmul(x, experts, more, sizes),
            gate.dequantize(torch.bfloat16),
        )

    for got, expected in zip(compiled(everything)(x), everything(x), strict=True):
        assert torch.equal(got, expected)


def test_weights_can_be_arguments_and_attributes():
    class Layer(torch.nn.Module):
        def __init__(self, w):
            super().__init__()
            self.w = w

        def forward(self, x):
            return bs.matmul(x, self.w).relu()

    w, x = weights(bs.NVFP4, 6, 64)[0], torch.randn(5, 64)
    layer = Layer(w)
    assert torch.equal(compiled(layer)(x), layer(x))
    assert torch.equal(compiled(lambda x, w: bs.matmul(x, w))(x, w), bs.matmul(x, w))


def test_quantize_compiles_and_returns_a_qtensor():
    x = torch.randn(4, 64)
    for fmt_ in (bs.NVFP4, bs.MXFP8, bs.KBIT4):
        q = compiled(lambda x, fmt_=fmt_: bs.quantize(x * 2, fmt_))(x)
        assert q == bs.quantize(x * 2, fmt_)


def test_dynamic_row_counts_do_not_recompile():
    w = weights(bs.NVFP4, 6, 64)[0]
    counter = torch._dynamo.testing.CompileCounter()
    run = torch.compile(lambda x: bs.matmul(x, w), fullgraph=True, dynamic=True, backend=counter)
    for m in (3, 5, 9, 17):
        assert run(torch.randn(m, 64)).shape == (m, 6)
    assert counter.frame_count == 1


def test_inductor_compiles_too():
    w, x = weights(bs.NVFP4, 6, 64)[0], torch.randn(5, 64)
    run = torch.compile(lambda x: bs.matmul(x.sin(), w).cos(), fullgraph=True)
    torch.testing.assert_close(run(x), bs.matmul(x.sin(), w).cos())


def test_compiled_gradients():
    w, x = weights(bs.NVFP4, 6, 64)[0], torch.randn(5, 64)
    eager, traced = (x.clone().requires_grad_() for _ in range(2))
    bs.matmul(eager, w).square().sum().backward()
    compiled(lambda x: bs.matmul(x, w).square().sum())(traced).backward()
    torch.testing.assert_close(traced.grad, eager.grad)


# --- gradients ---


def reference_gradients(function, x, *biases):
    """Of the same expression on dequantised weights, by autograd in float64."""
    leaves = [t.detach().double().requires_grad_() for t in (x, *biases)]
    function(*leaves).square().sum().backward()
    return [leaf.grad for leaf in leaves]


def test_gradient_of_a_linear_layer(fmt):
    w = bs.quantize(torch.randn(6, 256), fmt)
    x, bias = torch.randn(2, 5, 256, requires_grad=True), torch.randn(6, requires_grad=True)
    bs.linear(x, w, bias).square().sum().backward()
    dense = w.dequantize().double()
    expected = reference_gradients(lambda x, b: x @ dense.T + b, x, bias)
    for got, want in zip((x.grad, bias.grad), expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def test_gradient_of_a_batch():
    w = bs.quantize(torch.randn(3, 6, 64), bs.NVFP4)
    x, bias = torch.randn(3, 5, 64, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    bs.linear(x, w, bias).square().sum().backward()
    dense = w.dequantize().double()
    expected = reference_gradients(lambda x, b: x @ dense.mT + b[:, None], x, bias)
    torch.testing.assert_close(x.grad.double(), expected[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(bias.grad.double(), expected[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "activation", ["silu", "gelu", "gelu_tanh", bs.swiglu_oai(1.702, 1.0)], ids=str
)
def test_gradient_of_a_gate(activation):
    gate, up = weights(bs.MXFP8, 6, 64)
    x, b, c = torch.randn(5, 64) / 8, torch.randn(6), torch.randn(6)
    leaves = [t.clone().requires_grad_() for t in (x, b, c)]
    bs.gated_matmul(leaves[0], gate, up, activation, leaves[1], leaves[2]).square().sum().backward()
    g, u = gate.dequantize().double(), up.dequantize().double()
    act = parse_activation(activation)
    expected = reference_gradients(lambda x, b, c: act(x @ g.T + b, x @ u.T + c), x, b, c)
    for leaf, want in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad.double(), want, rtol=2e-5, atol=2e-4)


def test_gradient_of_groups():
    w = bs.quantize(torch.randn(3, 6, 64), bs.NVFP4)
    x, bias = torch.randn(7, 64, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    sizes = torch.tensor([2, 0, 3])  # the last two rows belong to nobody
    bs.grouped_matmul(x, w, sizes, bias).square().sum().backward()
    dense = w.dequantize().double()

    def expression(x, b):
        return torch.cat([x[:2] @ dense[0].T + b[0], x[2:5] @ dense[2].T + b[2]])

    expected = reference_gradients(expression, x, bias)
    torch.testing.assert_close(x.grad.double(), expected[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(bias.grad.double(), expected[1], rtol=1e-5, atol=1e-4)
    assert not x.grad[5:].any()
    assert not bias.grad[1].any()


def test_gradient_of_gated_groups():
    gate, up = weights(bs.NVFP4, 2, 6, 64)
    x = torch.randn(5, 64, requires_grad=True)
    bs.grouped_gated_matmul(x, gate, up, torch.tensor([3, 2])).square().sum().backward()
    g, u = gate.dequantize().double(), up.dequantize().double()

    def expression(x):
        parts = [(x[:3], 0), (x[3:], 1)]
        return torch.cat([torch.nn.functional.silu(r @ g[e].T) * (r @ u[e].T) for r, e in parts])

    (expected,) = reference_gradients(expression, x)
    torch.testing.assert_close(x.grad.double(), expected, rtol=1e-4, atol=1e-2)


def test_quantizing_x_is_the_identity_for_the_gradient():
    w, x = weights(bs.NVFP4, 6, 64)[0], torch.randn(5, 64, requires_grad=True)
    bs.matmul(x, w, x_format=bs.NVFP4).sum().backward()
    expected = w.dequantize().sum(0).expand(5, 64)
    torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-5)


def test_short_dtypes_get_their_own_gradients():
    w = weights(bs.NVFP4, 6, 64)[0]
    x = torch.randn(5, 64).bfloat16().requires_grad_()
    bs.matmul(x, w).sum().backward()
    assert x.grad.dtype == torch.bfloat16


def test_an_adapter_trains_on_frozen_weights():
    """LoRA beside a quantised layer: the loss falls, the weight keeps its bytes."""
    w = weights(bs.NVFP4, 16, 64)[0]
    before = w.codes.clone()
    down, up = torch.nn.Linear(64, 4, bias=False), torch.nn.Linear(4, 16, bias=False)
    torch.nn.init.zeros_(up.weight)
    embed = torch.nn.Linear(64, 64)
    parameters = [*down.parameters(), *up.parameters(), *embed.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-2)
    x, target = torch.randn(32, 64), torch.randn(32, 16)
    losses = []
    for _ in range(20):
        h = embed(x)
        loss = (bs.matmul(h, w) + up(down(h)) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert torch.equal(w.codes, before)
