"""Loading into models: quantised layers take their places, everything else fits or is refused."""

import pytest
import torch
from torch import nn

import blockscale as bs
from checkpoint.damage import rewrite_json


class Toy(nn.Module):
    def __init__(self, k=64, bias=True):
        super().__init__()
        self.embed = nn.Embedding(8, k)
        self.up = nn.Linear(k, 96, bias=bias)
        self.down = nn.Linear(96, k, bias=False)
        self.norm = nn.LayerNorm(k)
        self.head = nn.Linear(k, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, index):
        return self.head(self.norm(self.down(self.up(self.embed(index)).relu())))


def checkpoint(model, path, fmt="mxfp8", **extra):
    state = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    for name in ("up.weight", "down.weight"):
        state[name] = bs.quantize(state[name], fmt)
    bs.save({**state, **extra}, path)
    return bs.load(path)


@pytest.mark.parametrize("fmt_name", ["nvfp4", "mxfp8", "kbit4"])
def test_a_model_computes_with_the_loaded_weights(tmp_path, fmt_name):
    saved, model = Toy(), Toy()
    found = checkpoint(saved, tmp_path / "x", fmt_name)
    bs.load_into(model, tmp_path / "x")
    assert isinstance(model.up, bs.nn.Linear)
    assert model.up.weight == found["up.weight"]
    assert model.head.weight is model.embed.weight
    saved.up.weight.data = found["up.weight"].dequantize()
    saved.down.weight.data = found["down.weight"].dequantize()
    index = torch.arange(8)
    torch.testing.assert_close(model(index), saved(index), rtol=1e-4, atol=1e-4)


def test_loaded_twice_and_saved_again(tmp_path):
    found = checkpoint(Toy(), tmp_path / "x")
    model = Toy()
    bs.load_into(model, tmp_path / "x")
    bs.load_into(model, tmp_path / "x")
    bs.save(model, tmp_path / "y")
    again = bs.load(tmp_path / "y")
    assert again.keys() - {"head.weight"} == found.keys()
    assert again["down.weight"] == found["down.weight"]


def test_a_model_on_the_meta_device_is_filled(tmp_path):
    saved = Toy()
    checkpoint(saved, tmp_path / "x")
    with torch.device("meta"):
        model = Toy()
    bs.load_into(model, tmp_path / "x")
    assert torch.equal(model.norm.weight, saved.norm.weight)
    assert not model.up.weight.codes.is_meta
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, saved.embed.weight)


def test_plain_tensors_take_the_dtype_of_the_model(tmp_path):
    checkpoint(Toy(), tmp_path / "x")
    model = Toy().bfloat16()
    bs.load_into(model, tmp_path / "x")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("model", "extra", "message"),
    [
        (Toy(k=32), {}, r"down.weight is \[64, 96\], the model's layer is \[32, 96\]"),
        (Toy(bias=False), {}, "up has a bias only in one of model and checkpoint"),
        (Toy(), {"ghost": torch.zeros(1)}, "the model has no ghost"),
        (Toy(), {"norm.bias": torch.zeros(3)}, r"norm.bias is \[3\], the model's is \[64\]"),
        (Toy(), {"other.weight": bs.quantize(torch.randn(4, 64), "mxfp8")}, "model has nothing"),
        (Toy(), {"norm.weight": bs.quantize(torch.randn(4, 64), "mxfp8")}, "model has LayerNorm"),
        (nn.Sequential(Toy()), {}, "model has nothing of this name"),
    ],
)
def test_what_does_not_fit_leaves_the_model_alone(tmp_path, model, extra, message):
    checkpoint(Toy(), tmp_path / "x", **extra)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        bs.load_into(model, tmp_path / "x")
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_missing_tensor_is_named(tmp_path):
    bs.save({"up.weight": bs.quantize(torch.randn(96, 64), "mxfp8"), "up.bias": torch.zeros(96)},
            tmp_path / "x")  # fmt: skip
    with pytest.raises(ValueError, match=r"the checkpoint has no embed.weight, down.weight"):
        bs.load_into(Toy(), tmp_path / "x")


# --- experts ---


def mixture(bias=False):
    """A layer of fused experts, as transformers writes them."""
    transformers = pytest.importorskip("transformers")
    if bias:
        config = transformers.GptOssConfig(
            hidden_size=64, intermediate_size=32, num_local_experts=4, num_hidden_layers=1
        )
        module = transformers.models.gpt_oss.modeling_gpt_oss.GptOssExperts(config)
    else:
        config = transformers.Qwen3MoeConfig(
            hidden_size=64, moe_intermediate_size=32, num_experts=4, num_hidden_layers=1
        )
        module = transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeExperts(config)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return nn.ModuleDict({"experts": module})


def names_of(way, gate, up, down):
    """The same experts under each of the names they have in checkpoints."""
    if way == "fused":
        gate_up = bs.QTensor.from_storage(
            gate.format,
            torch.cat([gate.codes, up.codes], 1),
            torch.cat([gate.scale, up.scale], 1),
        )
        return {"experts.gate_up_proj": gate_up, "experts.down_proj": down}
    if way == "own":
        return {"experts.gate": gate, "experts.up": up, "experts.down": down}
    projections = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    return {
        f"m.experts.{i}.{name}.weight": q[i] for i in range(4) for name, q in projections.items()
    }


@pytest.mark.parametrize("way", ["fused", "own", "one by one"])
def test_experts_are_loaded_under_all_their_names(tmp_path, way):
    gate, up = (bs.quantize(torch.randn(4, 32, 64), "mxfp8") for _ in range(2))
    down = bs.quantize(torch.randn(4, 64, 32), "mxfp8")
    bs.save(names_of(way, gate, up, down), tmp_path / "x")
    model = mixture()
    if way == "one by one":
        model = nn.ModuleDict({"m": model})
    bs.load_into(model, tmp_path / "x")
    experts = model["m"]["experts"] if way == "one by one" else model["experts"]
    assert isinstance(experts, bs.nn.Experts)
    assert (experts.gate, experts.up, experts.down) == (gate, up, down)


def test_tensor_scales_of_single_experts_are_kept(tmp_path):
    gate, up = (bs.quantize(torch.randn(4, 32, 64), "nvfp4", tensor_scale=0.01) for _ in range(2))
    down = bs.quantize(torch.randn(4, 64, 32) * torch.arange(1, 5)[:, None, None], "nvfp4")
    bs.save(names_of("one by one", gate, up, down), tmp_path / "x", dialect="modelopt")
    model = nn.ModuleDict({"m": mixture()})
    bs.load_into(model, tmp_path / "x")
    assert model["m"]["experts"].down == down


def test_experts_with_biases_come_back_from_a_saved_model(tmp_path):
    model = mixture(bias=True)
    bs.quantize_(model, "mxfp8")
    bs.save(model, tmp_path / "x")
    fresh = mixture(bias=True)
    bs.load_into(fresh, tmp_path / "x")
    x, index = torch.randn(5, 64), torch.randint(0, 4, (5, 2))
    weights = torch.rand(5, 2)
    ours, theirs = (m["experts"](x, index, weights) for m in (fresh, model))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("loaded", [False, True])
def test_biases_of_experts_have_the_dtype_of_the_model(tmp_path, loaded):
    model = mixture(bias=True)
    bs.quantize_(model, "mxfp8")
    bs.save(model, tmp_path / "x")
    fresh = mixture(bias=True).bfloat16()
    for _ in range(1 + loaded):  # into plain experts, and into packed ones
        bs.load_into(fresh, tmp_path / "x")
    biases = dict(fresh.named_parameters())
    assert {bias.dtype for bias in biases.values()} == {torch.bfloat16}
    saved = dict(model.named_parameters())
    assert all(torch.equal(biases[name], saved[name].bfloat16()) for name in saved)


def test_missing_experts_are_named(tmp_path):
    q = bs.quantize(torch.randn(4, 64), "mxfp8")
    bs.save({"m.experts.1.up_proj.weight": q}, tmp_path / "x")
    with pytest.raises(ValueError, match="some of the experts are missing"):
        bs.load_into(nn.ModuleDict({"m": mixture()}), tmp_path / "x")
    bs.save({"experts.down_proj": bs.quantize(torch.randn(4, 64, 32), "mxfp8")}, tmp_path / "y")
    with pytest.raises(ValueError, match="needs gate, up and down, got down"):
        bs.load_into(mixture(), tmp_path / "y")
    with pytest.raises(ValueError, match="the model has none there"):
        bs.load_into(Toy(), tmp_path / "y")


def test_experts_that_cannot_be_packed_are_to_be_kept(tmp_path):
    """Nemotron-H has no gates, in a module of transformers' kind."""
    q = {name: bs.quantize(torch.randn(4, 64, 64), "mxfp8") for name in ("up_proj", "down_proj")}
    bs.save({f"experts.{name}": each for name, each in q.items()}, tmp_path / "x")
    there = nn.Module()
    for name in q:
        there.register_parameter(name, nn.Parameter(torch.zeros(4, 64, 64)))
    told = "experts are quantised, and Module has no gate_up_proj: keep them .*experts.*=keep"
    with pytest.raises(TypeError, match=told):
        bs.load_into(nn.ModuleDict({"experts": there}), tmp_path / "x")


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(64, 32)
        self.up_proj = nn.Linear(64, 32)
        self.down_proj = nn.Linear(32, 64)


def apart():
    """Experts that are modules of their own, as models write them that are not fused."""
    return nn.ModuleDict({"m": nn.ModuleDict({"experts": nn.ModuleList([Expert(), Expert()])})})


@pytest.mark.parametrize("quantised", [False, True])
def test_experts_in_a_list_come_back_from_a_saved_model(tmp_path, quantised):
    model, fresh = apart(), apart()
    bs.quantize_(model, "nvfp4")
    if quantised:
        bs.quantize_(fresh, "nvfp4")
    bs.save(model, tmp_path / "x")
    bs.load_into(fresh, tmp_path / "x")
    x = torch.randn(5, 64)
    for ours, saved in zip(fresh["m"]["experts"], model["m"]["experts"], strict=True):
        assert ours.down_proj.weight == saved.down_proj.weight
        assert torch.equal(ours.up_proj(x), saved.up_proj(x))


# --- scales of activations ---


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.k_proj = nn.Linear(64, 64, bias=False)
        self.v_proj = nn.Linear(64, 64, bias=False)


@pytest.mark.parametrize(
    "place",
    [
        "{0}_proj.{0}_scale",  # ModelOpt's
        "{0}_proj.{0}_bias",
        "{0}_scale",  # compressed-tensors'
        "{0}_zero_point",
    ],
)
def test_scales_of_a_quantised_cache_are_not_used_and_named(tmp_path, place, capsys):
    weights = {
        f"{each}_proj.weight": bs.quantize(torch.randn(64, 64), "nvfp4", tensor_scale=0.01)
        for each in "kv"
    }
    inputs = {f"{each}_proj.input_scale": torch.ones(()) for each in "kv"}
    cache = {place.format(each): torch.ones(()) for each in "kv"}
    bs.save({**weights, **inputs, **cache}, tmp_path / "x", dialect="modelopt")
    model = Attention()
    bs.load_into(model, tmp_path / "x")
    assert model.k_proj.weight == weights["k_proj.weight"]
    assert f"not used: {', '.join(sorted(cache))}" in capsys.readouterr().err


def test_a_scale_that_the_model_has_is_loaded(tmp_path):
    model, fresh = Attention(), Attention()
    for each, value in ((model, 3.0), (fresh, 0.0)):
        each.k_scale = nn.Parameter(torch.tensor(value))
    bs.quantize_(model, "mxfp8")
    bs.save(model, tmp_path / "x")
    bs.load_into(fresh, tmp_path / "x")
    assert fresh.k_scale == 3


# --- what inputs are quantised to ---


def saved_with(x_format, path, dialect="blockscale"):
    model = Toy()
    bs.quantize_(model, "kbit4", ["up", "down"], scale="absmax", x_format=x_format)
    bs.save(model, path, dialect=dialect)
    return model


@pytest.mark.parametrize("x_format", ["int8", bs.MXFP8, None], ids=str)
@pytest.mark.parametrize("name", ["x", "x.safetensors"])
def test_layers_quantise_their_inputs_as_those_that_were_saved(tmp_path, x_format, name):
    saved, model = saved_with(x_format, tmp_path / name), Toy()
    bs.load_into(model, tmp_path / name)
    assert model.up.x_format == saved.up.x_format == x_format
    assert torch.equal(model(torch.arange(8)), saved(torch.arange(8)))


@pytest.mark.parametrize("stated", [None, bs.MXFP8], ids=str)
def test_packed_layers_keep_what_they_quantise_their_inputs_to(tmp_path, stated):
    saved_with(stated, tmp_path / "x")
    model = saved_with("int8", tmp_path / "y")
    bs.load_into(model, tmp_path / "x")
    assert model.up.x_format == "int8"


def test_packed_experts_keep_what_they_quantise_their_inputs_to(tmp_path):
    model = mixture()
    bs.quantize_(model, "mxfp8", x_format="mxfp8")
    fresh = mixture()
    bs.quantize_(fresh, "mxfp8")
    bs.save(fresh, tmp_path / "x")
    bs.load_into(model, tmp_path / "x")
    assert model["experts"].x_format == bs.MXFP8


@pytest.mark.parametrize("stated", ["int9", 7, ["int8"], "x" * 65])
def test_inputs_in_a_format_that_is_none_are_an_error_with_the_file(tmp_path, stated):
    saved_with("int8", tmp_path / "x")
    rewrite_json(
        tmp_path / "x" / "config.json", lambda c: c["quantization_config"].update(x_format=stated)
    )
    with pytest.raises(ValueError, match="/x: x_format"):
        bs.load_into(Toy(), tmp_path / "x")
