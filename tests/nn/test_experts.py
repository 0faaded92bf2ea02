"""nn.Experts: the mixture against a loop over tokens, and fused experts of other libraries."""

import copy
import pickle

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import blockscale as bs
from blockscale.nn.fused import is_fused, read_fused
from blockscale.numerics import parse_activation
from bounds import branch_bound, cast_bound, gated_bound, roundings

E, H, INNER, TOP, TOKENS = 5, 64, 32, 2, 11


def experts_of(format, *, bias=False, activation="silu", **options):
    shapes = {"gate": (E, INNER, H), "up": (E, INNER, H), "down": (E, H, INNER)}
    weights = {name: bs.quantize(torch.randn(shape) / 4, format) for name, shape in shapes.items()}
    biases = {
        f"{name}_bias": torch.randn(shape[:-1]).requires_grad_()
        for name, shape in shapes.items()
        if bias
    }
    return bs.nn.Experts.from_qtensors(**weights, **biases, activation=activation, **options)


def routing(tokens=TOKENS):
    """Inputs, experts, weights; expert 3 gets no token."""
    logits = torch.randn(tokens, E)
    logits[:, 3] = -torch.inf
    weights, index = logits.softmax(-1).topk(TOP)
    return torch.randn(tokens, H), index, weights


def by_token(module, x, index, weights):
    """The definition, in float64, one token and one expert at a time; and its error bound."""
    act = parse_activation(module.activation)
    gate, up, down = (q.dequantize().double() for q in (module.gate, module.up, module.down))
    y, bound = torch.zeros_like(x.double()), torch.zeros_like(x.double())
    for token in range(len(x)):
        for slot, e in enumerate(index[token].tolist()):
            if not 0 <= e < E:
                continue
            row, w = x[token : token + 1].double(), weights[token, slot].double()
            biases = (
                None if bias is None else bias[e].detach().double()
                for bias in (module.gate_bias, module.up_bias, module.down_bias)
            )
            g_bias, u_bias, d_bias = (0 if bias is None else bias for bias in biases)
            g, u = row @ gate[e].T + g_bias, row @ up[e].T + u_bias
            h = act(g, u)
            g_bound, u_bound = (
                branch_bound(row, matrix, each, x_dtype=x.dtype, bias=torch.as_tensor(bias))
                for matrix, each, bias in ((gate[e], g, g_bias), (up[e], u, u_bias))
            )
            h_bound = gated_bound(g, u.abs() + 1, h, g_bound, u_bound, x.dtype)
            d = h @ down[e].T + d_bias
            d_bound = branch_bound(h, down[e], d, x_dtype=x.dtype, bias=torch.as_tensor(d_bias))
            d_bound = d_bound + h_bound @ down[e].abs().T
            y[token] += (w * d)[0]
            bound[token] += (w * d_bound + roundings(TOP + 1, (w * d).abs()))[0]
    return y, bound + cast_bound(y, x.dtype)


@pytest.mark.parametrize("format", [bs.NVFP4, bs.MXFP8, bs.KBIT4], ids=str)
@pytest.mark.parametrize(
    ("bias", "activation"),
    [(False, "silu"), (True, bs.swiglu_oai(1.702, 1.0)), (True, "gelu_tanh")],
    ids=str,
)
def test_forward_is_the_weighted_sum(format, bias, activation):
    module = experts_of(format, bias=bias, activation=activation)
    x, index, weights = routing()
    y, bound = by_token(module, x, index, weights)
    assert ((module(x, index, weights).double() - y).abs() <= bound).all()


def test_a_token_never_depends_on_its_neighbours():
    module, (x, index, weights) = experts_of(bs.NVFP4), routing()
    order = torch.randperm(TOKENS)
    shuffled = module(x[order], index[order], weights[order])
    y, bound = by_token(module, x, index, weights)
    assert ((shuffled.double() - y[order]).abs() <= bound[order]).all()


@pytest.mark.parametrize("nobody", [E, E + 7, -1])
def test_numbers_that_no_expert_has_stand_for_nobody(nobody):
    module, (x, index, weights) = experts_of(bs.NVFP4, bias=True), routing()
    index[2, 1] = index[5] = nobody
    y, bound = by_token(module, x, index, weights)
    got = module(x, index, weights)
    assert ((got.double() - y).abs() <= bound).all()
    assert not got[5].any()


def test_leading_dimensions_and_int32():
    module, (x, index, weights) = experts_of(bs.NVFP4), routing(12)
    y = module(x, index, weights)
    shaped = module(x.reshape(3, 4, H), index.int().reshape(3, 4, TOP), weights.reshape(3, 4, TOP))
    assert torch.equal(shaped, y.reshape(3, 4, H))
    assert module(x[:0], index[:0], weights[:0]).shape == (0, H)


def test_short_dtypes_are_rounded_once_at_the_end():
    module, (x, index, weights) = experts_of(bs.NVFP4), routing()
    y = module(x.bfloat16(), index, weights.bfloat16())
    exact, bound = by_token(module, x.bfloat16(), index, weights.bfloat16())
    assert y.dtype == torch.bfloat16
    assert ((y.double() - exact).abs() <= bound).all()


def test_activations_are_quantized_if_asked():
    module, (x, index, weights) = experts_of(bs.NVFP4, x_format="mxfp8"), routing()
    plain = bs.nn.Experts.from_qtensors(module.gate, module.up, module.down)
    rough, exact = module(x, index, weights), plain(x, index, weights)
    assert 0 < (rough - exact).norm() / exact.norm() < 0.1


# --- what happens to modules ---


def test_casts_state_dicts_and_copies(foreign):
    module, (x, index, weights) = experts_of(bs.KBIT4, bias=True), routing()
    before = {name: part.clone() for name, part in module.state_dict().items()}
    y = module(x, index, weights)
    assert module.down.layout == foreign(bs.KBIT4, "cpu")
    fresh = bs.nn.Experts(E, H, INNER, bs.KBIT4, bias=True, device="meta")
    fresh.load_state_dict(module.state_dict(), assign=True)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), fresh):
        assert torch.equal(twin(x, index, weights), y)
    after = module.to(torch.bfloat16).state_dict()
    assert set(after) == set(before)
    for name, part in before.items():
        assert torch.equal(after[name], part if "bias" not in name else part.bfloat16())


def test_two_formats():
    gate, up, down = experts_of(bs.KBIT4).qtensors().values()
    down = bs.quantize(down.dequantize(), bs.MXFP8)
    module, (x, index, weights) = bs.nn.Experts.from_qtensors(gate, up, down), routing()
    y, bound = by_token(module, x, index, weights)
    assert ((module(x, index, weights).double() - y).abs() <= bound).all()
    fresh = bs.nn.Experts(E, H, INNER, bs.KBIT4, down_format=bs.MXFP8)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(x, index, weights), module(x, index, weights))
    assert "format=kbit4, down_format=mxfp8" in repr(fresh)


@pytest.mark.usefixtures("_fresh_compiler")
def test_it_compiles_in_one_graph(foreign):
    module, counter = experts_of(bs.NVFP4, bias=True), CompileCounter()
    eager = copy.deepcopy(module)
    run = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    for inputs in (routing(11), routing(7)):
        assert torch.equal(run(*inputs), eager(*inputs))
    assert counter.frame_count == 1
    assert module.gate.layout == foreign(bs.NVFP4, "cpu")


def test_gradients_reach_inputs_routing_and_biases():
    module, (x, index, weights) = experts_of(bs.MXFP8, bias=True), routing()
    leaves = [x.requires_grad_(), weights.requires_grad_(), *module.parameters()]
    module(x, index, weights).square().sum().backward()
    gate, up, down = (q.dequantize().double() for q in module.qtensors().values())
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    xx, ww, g_bias, u_bias, d_bias = wide
    g = torch.einsum("th,tsih->tsi", xx, gate[index]) + g_bias[index]
    u = torch.einsum("th,tsih->tsi", xx, up[index]) + u_bias[index]
    d = torch.einsum("tsi,tshi->tsh", torch.nn.functional.silu(g) * u, down[index]) + d_bias[index]
    (d * ww[..., None]).sum(1).square().sum().backward()
    for leaf, exact in zip(leaves, wide, strict=True):
        # k + 16 float32 roundings of terms that are, for these sizes, within 64 of the largest.
        bound = roundings(H + 16, 64 * exact.grad.abs().max())
        assert ((leaf.grad.double() - exact.grad).abs() <= bound).all()


# --- fused experts of other libraries ---


class SiLU(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x)


class Fused(torch.nn.Module):
    """As transformers stores experts, without it."""

    def __init__(self, *, transposed=False, concatenated=True, bias=False):
        super().__init__()
        self.is_transposed, self.is_concatenated, self.has_bias = transposed, concatenated, bias
        gate_up, down = torch.randn(E, 2 * INNER, H), torch.randn(E, H, INNER)
        if transposed:
            gate_up, down = gate_up.mT.contiguous(), down.mT.contiguous()
        self.gate_up_proj = torch.nn.Parameter(gate_up)
        self.down_proj = torch.nn.Parameter(down)
        if bias:
            self.gate_up_proj_bias = torch.nn.Parameter(torch.randn(E, 2 * INNER))
            self.down_proj_bias = torch.nn.Parameter(torch.randn(E, H))
        self.act_fn = SiLU()


def test_both_orders_of_rows_and_columns_are_read():
    for transposed in (False, True):
        for concatenated in (False, True):
            module = Fused(transposed=transposed, concatenated=concatenated, bias=True)
            fused = read_fused(module)
            gate_up = module.gate_up_proj.mT if transposed else module.gate_up_proj
            gates = slice(0, INNER) if concatenated else slice(0, None, 2)
            ups = slice(INNER, None) if concatenated else slice(1, None, 2)
            assert torch.equal(fused.gate, gate_up[:, gates])
            assert torch.equal(fused.up, gate_up[:, ups])
            assert torch.equal(fused.up_bias, module.gate_up_proj_bias[:, ups])
            assert fused.down.shape == (E, H, INNER)
            assert fused.activation == "silu"
            experts = bs.nn.Experts.from_fused(module, bs.NVFP4, scale="absmax")
            both = bs.quantize(gate_up.contiguous(), bs.NVFP4).tensor_scale  # gate and up share one
            wanted = bs.quantize(gate_up[:, ups].contiguous(), bs.NVFP4, tensor_scale=both)
            assert experts.up == wanted
            assert experts.down_bias is module.down_proj_bias


def test_biases_stay_trainable_without_gradients_around():
    with torch.no_grad():
        experts = bs.nn.Experts.from_fused(Fused(bias=True), bs.NVFP4, scale="absmax")
    assert experts.gate_bias.requires_grad
    assert experts.up_bias.requires_grad


def test_what_is_not_known_is_not_read():
    class OwnGate(Fused):
        def _apply_gate(self, gate_up):
            return gate_up

    own, silent, normed, odd, half = OwnGate(), Fused(), Fused(), Fused(), Fused()
    del silent.is_transposed
    normed.has_post_expert_norm = True
    odd.act_fn = torch.nn.Tanh()
    del half.gate_up_proj
    assert read_fused(own) == "the gate of OwnGate is not known here"
    assert "does not say how" in read_fused(silent)
    assert "normalises" in read_fused(normed)
    assert "the gate of Fused" in read_fused(odd)
    assert "no gate_up_proj" in read_fused(half)
    with pytest.raises(TypeError, match="from_fused: the gate of OwnGate"):
        bs.nn.Experts.from_fused(own, bs.NVFP4)
    assert not is_fused(torch.nn.Linear(4, 4))
    assert is_fused(own)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
def test_it_takes_the_place_of_transformers_experts(name, implementation):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": H, "num_experts_per_tok": TOP}
    if name == "Qwen3Moe":
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts as Theirs

        config = transformers.Qwen3MoeConfig(moe_intermediate_size=INNER, num_experts=E, **sizes)
    else:
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts as Theirs

        config = transformers.GptOssConfig(intermediate_size=INNER, num_local_experts=E, **sizes)
    config._experts_implementation = implementation
    theirs = Theirs(config)
    for parameter in theirs.parameters():  # numbers that MXFP8 holds: no error but of sums
        torch.nn.init.normal_(parameter)
        parameter.data = (parameter.data * 4).round().clamp(-15, 15) / 4
    ours = bs.nn.Experts.from_fused(theirs, bs.MXFP8)
    fused = read_fused(theirs)
    for q, weight in zip(ours.qtensors().values(), fused[:3], strict=True):
        assert torch.equal(q.dequantize(), weight)
    x, index, weights = routing()
    y, bound = by_token(ours, x, index, weights)
    assert ((ours(x, index, weights).double() - y).abs() <= bound).all()
    assert ((theirs(x, index, weights).double() - y).abs() <= bound).all()


# --- errors ---


def test_mistakes_are_named():
    gate, up, down = experts_of(bs.NVFP4).qtensors().values()
    make = bs.nn.Experts.from_qtensors
    with pytest.raises(ValueError, match=r"down must be \[5, 64, 32\] to follow a gate"):
        make(gate, up, gate)
    with pytest.raises(ValueError, match="gate and up must be alike"):
        make(gate, bs.quantize(up.dequantize(), bs.MXFP8), down)
    with pytest.raises(ValueError, match=r"gate must be \[e, n, k\]"):
        make(gate[0], up[0], down[0])
    with pytest.raises(ValueError, match=r"down_bias must be \[5, 64\], got \[5, 32\]"):
        make(gate, up, down, down_bias=torch.zeros(5, 32))
    with pytest.raises(ValueError, match="unknown activation"):
        make(gate, up, down, activation="tanh")
    with pytest.raises(ValueError, match=r"divisible by 32, got 16"):
        bs.nn.Experts(2, 64, 16, bs.NVFP4, x_format=bs.MXFP8)


@pytest.mark.parametrize(
    ("x", "index", "weights", "message"),
    [
        ((4, H // 2), (2, TOP), (2, TOP), r"must be \[..., 64\], got \[4, 32\]"),
        ((4, H), (3, TOP), (3, TOP), r"top_k_index must be \[4, 2\], .* got \[3, 2\]"),
        ((4, H), (4, TOP), (4, 1), r"top_k_weights must be \[4, 2\], .* got \[4, 1\]"),
        ((2, 2, H), (4, TOP), (2, TOP), r"\[4, 2\], a row for each .*\[2, 2, 64\], got \[2, 2\]"),
    ],
)
def test_rows_that_do_not_fit_are_named(x, index, weights, message):
    """As many numbers may be there as rows of the right width would have."""
    module = experts_of(bs.NVFP4)
    index = torch.zeros(index, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        module(torch.randn(x), index, torch.ones(weights))


def test_stacked_rows_are_as_many_for_each_expert():
    module = experts_of(bs.NVFP4, stacked=True)
    assert module(torch.randn(2 * E, H)).shape == (2 * E, H)
    with pytest.raises(ValueError, match="as many rows for each of 5 experts, got 11 in all"):
        module(torch.randn(11, H))
