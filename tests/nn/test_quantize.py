"""quantize_: which layers, to which format, and what is made of them."""

import gc
import types
import weakref

import pytest
import torch

import blockscale as bs
from blockscale.nn import quantize as quantize_module
from nn.blocks import DOWNS, UPS, Model, formats_of

# --- which layers, which formats ---


def test_heads_routers_embeddings_and_norms_are_kept_by_default():
    model = Model()
    report = bs.quantize_(model, bs.NVFP4)
    assert formats_of(model) == dict.fromkeys(sorted(UPS + DOWNS), bs.NVFP4)
    assert [layer.name for layer in report.kept] == ["blocks.0.gate", "blocks.1.gate", "lm_head"]
    assert report.kept[0].reason == "kept by default: *.gate"
    assert model(torch.arange(5)).shape == (5, 100)


@pytest.mark.parametrize("path", ["gate.wg", "gate.router_mlp.fc1", "modality_router"])
def test_routers_are_kept_by_whatever_name(path):
    """Of HunYuan, Zaya and Gemma 3n."""
    model = torch.nn.Module()
    model.up_proj = torch.nn.Linear(64, 96)
    *above, last = path.split(".")
    inner = model
    for name in above:
        inner.add_module(name, torch.nn.Module())
        inner = inner.get_submodule(name)
    inner.add_module(last, torch.nn.Linear(64, 4))
    report = bs.quantize_(model, bs.NVFP4)
    assert formats_of(model) == {"up_proj": bs.NVFP4}
    assert [layer.name for layer in report.kept] == [path]


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("*", [*UPS, *DOWNS, "blocks.0.gate", "blocks.1.gate", "lm_head"]),
        ("lm_head", ["lm_head"]),
        ("*.up_proj", UPS),
        (["blocks.0.*_proj", "*.1.down_proj"], ["blocks.0.up_proj", *DOWNS]),
        (lambda name, module: module.out_features == 96, UPS),
        (lambda name, module: name.startswith("blocks.1.d"), DOWNS[1:]),
    ],
)
def test_where(where, wanted):
    model = Model()
    report = bs.quantize_(model, bs.NVFP4, where)
    assert sorted(formats_of(model)) == sorted(wanted)
    assert sorted(layer.name for layer in report.quantized) == sorted(wanted)
    assert len(report.layers) == 7


def test_the_first_pattern_that_fits_gives_the_format():
    model = Model()
    formats = {
        "blocks.1.down_proj": None,
        "*.down_proj": "mxfp8",
        "*": bs.KBIT4,
        "up_proj": "nvfp4",
    }
    report = bs.quantize_(model, formats)
    assert formats_of(model) == {UPS[0]: bs.KBIT4, DOWNS[0]: bs.MXFP8, UPS[1]: bs.KBIT4}
    kept = {layer.name: layer.reason for layer in report.kept}
    assert kept[DOWNS[1]] == "kept by format: blocks.1.down_proj"
    assert report.unused_patterns == ("up_proj",)
    assert "no layer got its format from 'up_proj'" in str(report)


@pytest.mark.parametrize("scale", ["mse", "absmax"])
def test_fused_projections_share_a_tensor_scale(scale):
    """As `blockscale quantize` has it: what they would have as one matrix."""
    model = torch.nn.ModuleDict({f"{p}_proj": torch.nn.Linear(64, 32) for p in "qkvo"})
    with torch.no_grad():
        for factor, layer in enumerate(model.values()):
            layer.weight.mul_(1 + factor)
    plain = {name: layer.weight.detach().clone() for name, layer in model.items()}
    bs.quantize_(model, bs.NVFP4, scale=scale)
    together = bs.quantize(torch.cat([plain[f"{p}_proj"] for p in "qkv"]), bs.NVFP4, scale=scale)
    for index, name in enumerate(("q_proj", "k_proj", "v_proj")):
        assert model[name].weight == together[32 * index : 32 * (index + 1)]
    assert model["o_proj"].weight == bs.quantize(plain["o_proj"], bs.NVFP4, scale=scale)


def test_a_quantised_model_is_saved_for_engines(tmp_path):
    """q, k and v of NVFP4 in one dialect, which refuses scales that differ."""
    model = torch.nn.ModuleDict({f"{p}_proj": torch.nn.Linear(64, 32) for p in "qkv"})
    bs.quantize_(model, bs.NVFP4)
    bs.save(model, tmp_path / "q")
    assert bs.load(tmp_path / "q")["k_proj.weight"] == model["k_proj"].weight


def test_weights_of_other_modules_have_a_reason_too():
    class Conv1D(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(64, 32))
            self.bias = torch.nn.Parameter(torch.randn(32))

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), Conv1D(), torch.nn.Embedding(8, 64))
    report = bs.quantize_(model, bs.NVFP4)
    assert {layer.name: layer.reason for layer in report.kept} == {
        "1.weight": "Conv1D is no nn.Linear and no fused experts"
    }


def test_a_name_without_a_format_is_kept():
    model = Model()
    report = bs.quantize_(model, {"*.up_proj": bs.NVFP4})
    assert list(formats_of(model)) == UPS
    assert {layer.reason for layer in report.kept if "down" in layer.name} == {
        "no format for this name"
    }


def test_blocks_that_do_not_fit_are_kept():
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.Linear(64, 40))
    report = bs.quantize_(model, bs.MXFP8)
    assert list(formats_of(model)) == ["1"]
    assert "needs k divisible by 32, got 40" in report.kept[0].reason
    model = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.Linear(64, 40))
    report = bs.quantize_(model, bs.NVFP4, x_format=bs.MXFP8)
    assert list(formats_of(model)) == ["1"]
    assert "x's last dimension divisible by 32, got 48" in report.kept[0].reason


class Tied(torch.nn.Module):
    """A head that multiplies by the weight of the embedding."""

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(tie_word_embeddings=True)
        self.embed = torch.nn.Embedding(100, 64)
        self.body = torch.nn.Linear(64, 64)
        self.lm_head = torch.nn.Linear(64, 100, bias=False)
        self.lm_head.weight = self.embed.weight


def test_a_tied_head_gets_a_packed_copy_and_the_embedding_stays():
    model = Tied()
    before = model.embed.weight.detach().clone()
    report = bs.quantize_(model, bs.MXFP8, head=True)
    (head,) = [layer for layer in report.quantized if layer.name == "lm_head"]
    assert (head.bytes_before, head.bytes_after) == (0, model.lm_head.weight.nbytes)
    assert head.reason == "a copy: embed keeps the weight"
    assert isinstance(model.embed, torch.nn.Embedding)
    assert torch.equal(model.embed.weight, before)
    assert not model.config.tie_word_embeddings
    expected = bs.quantize(before, bs.MXFP8, scale="mse").dequantize()
    assert torch.equal(model.lm_head.dequantize(), expected)


def test_heads_are_kept_unless_asked_for():
    model = Tied()
    report = bs.quantize_(model, bs.MXFP8)
    assert [layer.name for layer in report.kept] == ["lm_head"]
    assert model.config.tie_word_embeddings
    model.lm_head.weight = torch.nn.Parameter(torch.randn(100, 64))  # of its own
    report = bs.quantize_(model, bs.MXFP8, where="none", head=True)
    assert [layer.name for layer in report.quantized] == ["lm_head"]
    assert report.quantized[0].bytes_before == 100 * 64 * 4


def test_shared_weights_and_strange_layers_are_kept():
    class Odd(torch.nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    model = Model()
    model.tied, model.odd = torch.nn.Linear(64, 100), Odd(64, 64)
    model.tied.weight = model.embed.weight
    model.encoder = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model.wide = torch.nn.Linear(64, 64, dtype=torch.float64)
    reasons = {layer.name: layer.reason for layer in bs.quantize_(model, bs.NVFP4).kept}
    assert reasons["tied"] == "shares its weight with embed"
    assert reasons["odd"] == "Odd may not compute what nn.Linear does"
    assert "NonDynamicallyQuantizableLinear" in reasons["encoder.self_attn.out_proj"]
    assert "read by the layer around it" in reasons["encoder.linear1"]
    assert reasons["wide"] == "its numbers are torch.float64"
    with torch.no_grad():
        assert model.encoder.eval()(torch.randn(1, 3, 64)).shape == (1, 3, 64)


def test_a_layer_in_two_places_stays_one_layer():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(64, 64)})
    model["b"] = model["a"]
    report = bs.quantize_(model, bs.NVFP4)
    assert isinstance(model["a"], bs.nn.Linear)
    assert model["a"] is model["b"]
    assert len(report.layers) == 1


def test_a_second_call_changes_nothing():
    model = Model()
    bs.quantize_(model, bs.NVFP4)
    before = model.blocks[0].up_proj
    report = bs.quantize_(model, bs.MXFP8)
    assert model.blocks[0].up_proj is before
    assert not report.quantized
    assert report.kept[0].reason == "quantised already"
    assert report.kept[0].bytes_before == before.weight.nbytes


# --- what is made ---


def test_options_reach_the_layers():
    model = Model().eval()
    bias = model.blocks[0].up_proj.bias
    w = model.blocks[0].up_proj.weight.detach().clone()
    bs.quantize_(model, "nvfp4", scale="four_over_six", x_format="mxfp8")
    layer = model.blocks[0].up_proj
    assert layer.weight == bs.quantize(w, bs.NVFP4, scale="four_over_six")
    assert layer.x_format == bs.MXFP8
    assert layer.bias is bias
    assert not layer.training
    model.train()
    assert layer.training


def test_scales_are_searched_by_default():
    model = Model()
    w = model.blocks[0].up_proj.weight.detach().clone()
    bs.quantize_(model, bs.NVFP4)
    assert model.blocks[0].up_proj.weight == bs.quantize(w, bs.NVFP4, scale="mse")


def test_codebooks_are_fitted_to_each_weight():
    plain, fitted = Model(), Model()
    fitted.load_state_dict(plain.state_dict())
    w = plain.blocks[0].up_proj.weight.detach().clone()
    formats = {"*.down_proj": bs.MXFP8, "*": bs.KBIT2}
    before = {layer.name: layer for layer in bs.quantize_(plain, formats).quantized}
    after = {layer.name: layer for layer in bs.quantize_(fitted, formats, codebook="fit").quantized}
    assert all(after[name].relative_error < before[name].relative_error for name in UPS)
    assert all(after[name].relative_error == before[name].relative_error for name in DOWNS)
    assert fitted.blocks[0].up_proj.weight.format == bs.fit_codebook(w, 2)
    assert len({after[name].format.codebook for name in UPS}) == 2


def test_fitting_takes_other_blocks_and_zeros():
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(64, 32))
    torch.nn.init.zeros_(model[1].weight)
    wide = bs.KBIT3.replace(block=64)
    report = bs.quantize_(model, wide, codebook="fit")
    assert [layer.format.block for layer in report.layers] == [64, 64]
    assert [layer.format == wide for layer in report.layers] == [False, True]
    assert report.layers[1].relative_error == 0


def test_a_sample_of_the_rows_is_enough(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(64, 512))
    w = model[0].weight.detach().clone()
    monkeypatch.setattr(quantize_module, "_SAMPLES", 64 * 100)
    report = bs.quantize_(model, bs.KBIT3, codebook="fit")
    assert report.layers[0].format == bs.fit_codebook(w[::6], 3)


def test_adapters_train_after_quantizing_for_inference():
    model = Model()
    with torch.inference_mode():
        bs.quantize_(model, bs.NVFP4)
    loss = model(torch.arange(5)).square().mean()
    loss.backward()
    assert model.embed.weight.grad.any()


def test_a_model_computes_with_the_dequantized_weights():
    model, twin = Model(), Model()
    twin.load_state_dict(model.state_dict())
    bs.quantize_(model, bs.NVFP4)
    for name in UPS + DOWNS:
        twin.get_submodule(name).weight.data = model.get_submodule(name).dequantize()
    tokens = torch.arange(5)
    expected = twin.double()(tokens)
    error = (model(tokens).double() - expected).abs().max()
    single = (twin.float()(tokens).double() - expected).abs().max()
    assert error <= 4 * single + 2**-22 * expected.abs().max()


def test_one_float_weight_at_a_time_is_held(monkeypatch):
    """When a layer is quantised, those before it are gone."""
    model = Model(blocks=4)
    names = [f"blocks.{i}.{name}" for i in range(4) for name in ("up_proj", "down_proj")]
    alive = {name: weakref.ref(model.get_submodule(name).weight) for name in names}
    seen, real = [], quantize_module.quantize

    def spy(*args, **options):
        gc.collect()
        seen.append([name for name in names if alive[name]() is not None])
        return real(*args, **options)

    monkeypatch.setattr(quantize_module, "quantize", spy)
    bs.quantize_(model, bs.NVFP4)
    assert seen == [names[i:] for i in range(8)]
    gc.collect()
    assert not any(ref() for ref in alive.values())


# --- errors leave the model as it was ---


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: bs.quantize_(m, "nvpf4"), ValueError, "did you mean 'nvfp4'"),
        (lambda m: bs.quantize_(m, bs.NVFP4, "*.typo"), ValueError, "not matched by where"),
        (lambda m: bs.quantize_(m, {"*.typo": "nvfp4"}), ValueError, "no format for this name"),
        (lambda m: bs.quantize_(m, bs.NVFP4, ["*", 3]), TypeError, "got 3 among them"),
        (lambda m: bs.quantize_(m, bs.NVFP4, scale="floor"), ValueError, "does not apply"),
        (lambda m: bs.quantize_(m, bs.NVFP4, x_format="fp3"), ValueError, "unknown format 'fp3'"),
        (lambda m: bs.quantize_(m, bs.NVFP4, codebook="fit"), ValueError, "KBIT4; got nvfp4"),
        (lambda m: bs.quantize_(m, bs.KBIT4, codebook="x"), ValueError, "one of fit, .*, got 'x'"),
        (lambda m: bs.quantize_(m.embed, bs.NVFP4), ValueError, "Embedding has no nn.Linear"),
        (lambda m: bs.quantize_(m.lm_head, bs.NVFP4), TypeError, "Linear.from_linear"),
        (lambda m: bs.quantize_(m.state_dict(), bs.NVFP4), TypeError, "must be an nn.Module"),
        (lambda m: bs.quantize_(m.to("meta"), bs.NVFP4), ValueError, "on the meta device"),
    ],
)
def test_mistakes_are_named(call, error, message):
    model = Model()
    with pytest.raises(error, match=message):
        call(model)
    assert not formats_of(model)
