"""Tiny random models of transformers, quantised: the logits, the state dict, a step of training."""

import copy

import pytest
import torch

import blockscale as bs
from blockscale.nn.fused import read_fused

TOKENS = torch.arange(12)[None] * 7 % 128
FORMATS = {"*.down_proj": bs.MXFP8, "*": bs.KBIT4}


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def with_dequantized_weights(model, quantized):
    """A float twin: in each layer the numbers that the quantised model has."""
    twin = copy.deepcopy(model)
    for name, module in quantized.named_modules():
        if isinstance(module, bs.nn.Linear):
            twin.get_submodule(name).weight.data = module.dequantize()
        elif isinstance(module, bs.nn.Experts):
            views = read_fused(twin.get_submodule(name))[:3]
            for view, q in zip(views, module.qtensors().values(), strict=True):
                view.data.copy_(q.dequantize())
    return twin


@pytest.fixture
def quantized(tiny_model):
    model = copy.deepcopy(tiny_model)
    bs.quantize_(model, FORMATS, scale="absmax")
    return model


def test_everything_but_the_head_and_the_router_is_quantized(tiny_model):
    report = bs.quantize_(tiny_model, FORMATS, scale="absmax")
    routers = {layer.name for layer in report.kept if "Router is no nn.Linear" in layer.reason}
    assert [layer.name for layer in report.kept if layer.name not in routers] == ["lm_head"]
    left = {name for name, p in tiny_model.named_parameters() if p.dim() > 1 and "bias" not in name}
    assert {name.rsplit(".", 2)[-2] for name in left} <= {
        "embed_tokens",
        "lm_head",
        "gate",
        "router",
    }
    for layer in report.quantized:
        assert layer.format == (bs.MXFP8 if "down_proj" in layer.name else bs.KBIT4)


def test_logits_are_those_of_the_dequantized_weights(tiny_model, quantized):
    twin = with_dequantized_weights(tiny_model, quantized)
    single, double = logits(twin), logits(copy.deepcopy(twin).double())
    rounding = (single.double() - double).abs().max()  # of the same model in float32
    error = (logits(quantized).double() - double).abs().max()
    assert error <= 4 * rounding
    assert (logits(tiny_model) - single).abs().max() > 1000 * rounding  # the test can tell


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_parent_may_ask_whether_the_weight_is_a_tensor(dtype):
    """T5 casts x to the dtype of a weight that is one."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=1, num_heads=4
    )
    model = transformers.T5ForConditionalGeneration(config).eval().to(dtype)
    bs.quantize_(model, bs.MXFP8, scale="absmax", importance=None)
    assert isinstance(model.encoder.block[0].layer[1].DenseReluDense.wo, bs.nn.Linear)
    with torch.no_grad():
        found = model(TOKENS, decoder_input_ids=TOKENS).logits
    assert found.dtype == dtype
    assert found.isfinite().all()


def test_a_state_dict_fills_a_fresh_model(tiny_model, quantized):
    expected = logits(quantized)
    state = {name: part.clone() for name, part in quantized.state_dict().items()}
    for parameter in tiny_model.parameters():
        torch.nn.init.normal_(parameter)
    bs.quantize_(tiny_model, FORMATS, scale="absmax")
    assert not torch.equal(logits(tiny_model), expected)
    tiny_model.load_state_dict(state)
    assert torch.equal(logits(tiny_model), expected)


def test_casts_and_copies_of_a_model(quantized):
    expected = logits(quantized)
    assert torch.equal(logits(copy.deepcopy(quantized)), expected)
    before = {name: part.clone() for name, part in quantized.named_buffers()}
    quantized.to(torch.bfloat16)
    for name, buffer in quantized.named_buffers():
        if name.rsplit("_", 1)[-1] in ("codes", "scale", "codebook"):
            assert torch.equal(buffer, before[name])
    assert quantized.lm_head.weight.dtype == torch.bfloat16


@pytest.mark.usefixtures("_fresh_compiler")
def test_layers_break_no_graph(quantized):
    run = torch.compile(quantized, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        compiled = run(TOKENS, use_cache=False).logits
    torch.testing.assert_close(compiled, logits(quantized), rtol=1e-4, atol=1e-5)
    assert not torch._dynamo.utils.counters["graph_break"]


class Adapter(torch.nn.Module):
    """Low-rank, beside a frozen layer."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer
        self.down = torch.nn.Linear(layer.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, layer.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def test_adapters_train_on_a_quantized_model(quantized):
    quantized.requires_grad_(requires_grad=False).train()
    for name, module in list(quantized.named_modules()):
        if isinstance(module, bs.nn.Linear) and name.endswith(("q_proj", "v_proj")):
            parent, _, child = name.rpartition(".")
            setattr(quantized.get_submodule(parent), child, Adapter(module))
    frozen = {name: part.clone() for name, part in quantized.state_dict().items()}
    trained = [p for p in quantized.parameters() if p.requires_grad]
    assert len(trained) == 8  # two layers, two adapters each, two matrices
    optimiser, losses = torch.optim.Adam(trained, lr=1e-2), []
    for _ in range(4):
        loss = quantized(TOKENS, labels=TOKENS).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    changed = {k for k, part in quantized.state_dict().items() if not torch.equal(part, frozen[k])}
    assert {name.rsplit(".", 2)[-2] for name in changed} == {"down", "up"}
