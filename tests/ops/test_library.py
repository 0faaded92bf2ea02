"""The torch.library ops: opcheck, torch.compile, gradients."""

import pytest
import torch
from torch.library import opcheck

import blockscale as bs
from blockscale import ops
from blockscale.numerics import parse_activation, rules_of
from bounds import STEEPEST, UNIT, roundings


def matmul_args(x, weights, biases=(None, None), sizes=None, activation="", x_format="", out=None):
    operand = x.operand if isinstance(x, bs.QTensor) else ops.plain(x)
    call = ops.MatmulCall(operand, [w.operand for w in weights], biases[: len(weights)], sizes,
                          activation, x_format, (), None, out or torch.float32)  # fmt: skip
    return ops.op_arguments(call)


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
        if "mse" in rules_of(fmt_):
            opcheck(ops.quantize, (*args[:3], "mse", *args[4:], torch.rand(64)))
    opcheck(ops.dequantize, (*q.operand, torch.bfloat16))


def test_conversions_refuse_to_be_differentiated():
    """The ops: `bs.quantize` detaches what it is given."""
    q = bs.quantize(torch.randn(4, 64), bs.NVFP4)
    x = torch.randn(4, 64, requires_grad=True)
    *_, scale = ops.quantize(x, q.operand.kind, [], "absmax", None, per_row=False)
    parts, *rest = q.operand
    values = ops.dequantize([*parts[:-1], parts[-1].requires_grad_()], *rest, torch.float32)
    for out, name in ((scale, "quantize"), (values, "dequantize")):
        with pytest.raises(RuntimeError, match=rf"\.{name} has no gradient: detach its argument"):
            out.sum().backward()


def test_storage_crosses_as_uint8(fmt):
    q = bs.quantize(torch.randn(4, 256), fmt)
    assert {part.dtype for part in q.operand.tensors} <= {torch.uint8, torch.float32}
    assert q.operand.tensors[0].dtype == q.operand.tensors[1].dtype == torch.uint8


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


def test_given_scales_and_blocked_layouts_compile():
    x, scale = torch.randn(4, 64), torch.tensor(0.01)
    q = compiled(lambda x, s: bs.quantize(x, bs.NVFP4, tensor_scale=s))(x, scale)
    assert q == bs.quantize(x, bs.NVFP4, tensor_scale=scale)
    packed = compiled(lambda q: q.pack("blocked"))(q)
    assert torch.equal(packed.scale, q.pack("blocked").scale)


def test_dynamic_row_counts_do_not_recompile():
    w = weights(bs.NVFP4, 6, 64)[0]
    counter = torch._dynamo.testing.CompileCounter()
    run = torch.compile(lambda x: bs.matmul(x, w), fullgraph=True, dynamic=True, backend=counter)
    for m in (3, 5, 9, 17):
        assert run(torch.randn(m, 64)).shape == (m, 6)
    assert counter.frame_count == 1


def test_numbers_of_an_activation_are_no_symbols():
    gate, up = (weights(bs.NVFP4, 6, 64)[0] for _ in range(2))
    activation = bs.swiglu_oai(1.5, 3.0)

    def call(x):
        return bs.gated_matmul(x, gate, up, activation)

    run = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
    for m in (3, 5):
        x = torch.randn(m, 64)
        assert torch.equal(run(x), call(x))


# What is compiled around a product does not matter: no vectors, whose instruction sets inductor
# would compile a program each to ask for, and no headers for later.
QUICKLY = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False, "compile_threads": 1}


def test_inductor_compiles_too():
    w, x = weights(bs.NVFP4, 6, 64)[0], torch.randn(5, 64)
    run = torch.compile(lambda x: bs.matmul(x.sin(), w).cos(), fullgraph=True, options=QUICKLY)
    torch.testing.assert_close(run(x), bs.matmul(x.sin(), w).cos())


def test_compiled_gradients():
    w, x = weights(bs.NVFP4, 6, 64)[0], torch.randn(5, 64)
    eager, traced = (x.clone().requires_grad_() for _ in range(2))
    bs.matmul(eager, w).square().sum().backward()
    compiled(lambda x: bs.matmul(x, w).square().sum())(traced).backward()
    torch.testing.assert_close(traced.grad, eager.grad)


# --- gradients ---


def squares(y):
    return y.square().sum()


def check_gradients(function, leaves, sizes):
    """Leaves with their gradients, against autograd of the same expression in float64.

    sizes: for each leaf the size of what float32 rounds on the way, from the float64 pass.
    """
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    squares(function(*wide)).backward()
    for leaf, exact_leaf, size in zip(leaves, wide, sizes, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        assert leaf.grad.shape == leaf.shape
        error = (leaf.grad.double() - exact_leaf.grad).abs()
        assert (error <= roundings(16, size) + 2 * UNIT[leaf.dtype] * exact_leaf.grad.abs()).all()


def test_gradient_of_a_linear_layer(fmt):
    w = bs.quantize(torch.randn(6, 256), fmt)
    x, bias = torch.randn(2, 5, 256, requires_grad=True), torch.randn(6, requires_grad=True)
    squares(bs.linear(x, w, bias)).backward()
    dense = w.dequantize().double()
    mass = x.double().abs() @ dense.abs().T + bias.double().abs()
    sizes = [2 * mass @ dense.abs(), 2 * mass.flatten(0, 1).sum(0)]
    check_gradients(lambda x, b: x @ dense.T + b, [x, bias], sizes)


def test_gradient_of_a_batch():
    w = bs.quantize(torch.randn(3, 6, 64), bs.NVFP4)
    x, bias = torch.randn(3, 5, 64, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    squares(bs.linear(x, w, bias)).backward()
    dense = w.dequantize().double()
    mass = x.double().abs() @ dense.abs().mT + bias.double().abs()[:, None]
    sizes = [2 * mass @ dense.abs(), 2 * mass.sum(1)]
    check_gradients(lambda x, b: x @ dense.mT + b[:, None], [x, bias], sizes)


def gate_sizes(x, gate, up, biases=(0, 0)):
    """Sizes of the gradients' terms for squares(act(g) * u): |2 y| (|u| + 1) 1.2 and alike."""
    (g, u) = (x.double().abs() @ w.abs().mT + b for w, b in zip((gate, up), biases, strict=True))
    y = 2 * STEEPEST * g * (u + 1)
    slopes = y * STEEPEST * (u + 1) * (1 + g), y * STEEPEST * g
    return [slopes[0] @ gate.abs() + slopes[1] @ up.abs(), *slopes]


@pytest.mark.parametrize("x_format", [None, bs.NVFP4, bs.KBIT5], ids=str)
@pytest.mark.parametrize(
    "activation", ["silu", "gelu", "gelu_tanh", bs.swiglu_oai(1.702, 1.0)], ids=str
)
def test_gradient_of_a_gate(activation, x_format):
    gate, up = weights(bs.MXFP8, 6, 64)
    leaves = [t.requires_grad_() for t in (torch.randn(5, 64) / 8, torch.randn(6), torch.randn(6))]
    x, b, c = leaves
    y = bs.gated_matmul(x, gate, up, activation, b, c, x_format=x_format)
    squares(y).backward()
    g, u = gate.dequantize().double(), up.dequantize().double()
    rounded = x.detach().double()
    if x_format is not None:
        rounded = bs.quantize(x.detach(), x_format, tensor_scale="row").dequantize().double()
    shift = rounded - x.detach().double()  # the identity for the gradient
    act = parse_activation(activation)
    size, *slopes = gate_sizes(rounded, g, u, (b.detach().abs(), c.detach().abs()))
    check_gradients(
        lambda x, b, c: act((x + shift) @ g.T + b, (x + shift) @ u.T + c),
        leaves,
        [size, slopes[0].sum(0), slopes[1].sum(0)],
    )


def test_gradient_of_groups():
    w = bs.quantize(torch.randn(3, 6, 64), bs.NVFP4)
    x, bias = torch.randn(7, 64, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    squares(bs.grouped_matmul(x, w, torch.tensor([2, 0, 3]), bias)).backward()  # two rows over
    dense = w.dequantize().double()

    def expression(x, b):
        return torch.cat([x[:2] @ dense[0].T + b[0], x[2:5] @ dense[2].T + b[2]])

    whose = [0, 0, 2, 2, 2]
    mass = torch.einsum("mk,mnk->mn", x[:5].double().abs(), dense[whose].abs())
    mass = mass + bias.double().abs()[whose]
    sizes = torch.zeros(7, 64).double(), torch.zeros(3, 6).double()
    sizes[0][:5] = 2 * torch.einsum("mn,mnk->mk", mass, dense[whose].abs())
    sizes[1].index_add_(0, torch.tensor(whose), 2 * mass.detach())
    check_gradients(expression, [x, bias], [size.detach() for size in sizes])
    assert not x.grad[5:].any()
    assert not bias.grad[1].any()


def test_gradient_of_gated_groups():
    gate, up = weights(bs.NVFP4, 2, 6, 64)
    x = (torch.randn(5, 64) / 8).requires_grad_()
    squares(bs.grouped_gated_matmul(x, gate, up, torch.tensor([3, 2]))).backward()
    g, u = gate.dequantize().double(), up.dequantize().double()

    def expression(x):
        parts = [(x[:3], 0), (x[3:], 1)]
        return torch.cat([torch.nn.functional.silu(r @ g[e].T) * (r @ u[e].T) for r, e in parts])

    rows = x.detach()
    size = torch.cat([gate_sizes(rows[:3], g[0], u[0])[0], gate_sizes(rows[3:], g[1], u[1])[0]])
    check_gradients(expression, [x], [size])


def test_bias_gradients_are_summed_in_float32():
    w = weights(bs.NVFP4, 6, 64)[0]
    x, bias = torch.randn(4096, 64).bfloat16(), torch.zeros(6, dtype=torch.bfloat16)
    bias.requires_grad_()
    bs.linear(x, w, bias).sum().backward()
    assert bias.grad.tolist() == [4096.0] * 6  # in bfloat16 the sum would stall at 256


def test_clipped_group_sizes_have_clipped_gradients():
    from blockscale.ops.gradients import bias_gradient

    grad = torch.ones(5, 2)
    raw, clipped = (
        bias_gradient(grad, torch.tensor(s), [3, 2, 64]) for s in ([4, -2, 9], [4, 0, 1])
    )
    assert torch.equal(raw, clipped)


def test_only_what_is_asked_for_is_computed(monkeypatch):
    from blockscale.kernels import KERNELS

    launched = []
    for kernel in KERNELS["input_grad"]:
        bind = kernel.bind
        spy = lambda *a, bind=bind: launched.append(1) or bind(*a)  # noqa: E731
        monkeypatch.setattr(kernel, "bind", spy)
    w, x, bias = weights(bs.NVFP4, 6, 64)[0], torch.randn(5, 64), torch.zeros(6, requires_grad=True)
    bs.linear(x, w, bias).sum().backward()
    assert not launched
    q = bs.quantize(x, bs.NVFP4)
    bs.linear(q, w, bias).sum().backward()
    assert not launched
    bs.linear(x.requires_grad_(), w, bias.detach()).sum().backward()
    assert launched


def test_empty_gradients():
    x = torch.randn(5, 64, requires_grad=True)
    bs.matmul(x, bs.quantize(torch.randn(0, 64), bs.NVFP4)).sum().backward()
    assert not x.grad.any()
    nobody = torch.randn(0, 5, 64, requires_grad=True)
    bias = torch.randn(0, 8, requires_grad=True)
    bs.linear(nobody, bs.quantize(torch.randn(0, 8, 64), bs.NVFP4), bias).sum().backward()
    assert bias.grad.shape == (0, 8)


def test_quantizing_x_is_the_identity_for_the_gradient(fmt):
    w, x = weights(bs.NVFP4, 6, 256)[0], torch.randn(5, 256, requires_grad=True)
    bs.matmul(x, w, x_format=fmt).sum().backward()
    dense = w.dequantize().double()
    error = (x.grad.double() - dense.sum(0)).abs()
    assert (error <= roundings(8, dense.abs().sum(0))).all()


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
