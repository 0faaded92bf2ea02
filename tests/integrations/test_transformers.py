"""Tiny random models through `from_pretrained` and `save_pretrained`, with packed weights."""

import gc
import importlib
import json
import logging
import re
import subprocess
import sys
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import blockscale as bs
import hanging
from blockscale import cli
from blockscale.checkpoint import Settings, plan_conversion, run_plan

transformers = pytest.importorskip("transformers", minversion="5.16")
auto = importlib.import_module("transformers.quantizers.auto")
integration = importlib.import_module("blockscale.integrations.transformers")
integration.unregister()  # other tests of this process meet transformers as it comes

BlockscaleConfig = integration.BlockscaleConfig
AutoModelForCausalLM = transformers.AutoModelForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many

TOKENS = torch.arange(12)[None] * 7 % 128
COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
FAMILIES = {
    "Llama": {"attention_bias": True},
    "Qwen3": {},
    "Qwen3Moe": {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}
MIXED = {"*.o_proj": None, "*.down_proj": "mxfp8", "*": "kbit4"}


@pytest.fixture(autouse=True)
def _registered():
    integration.register()
    yield
    integration.unregister()


def tiny(family, **extra):
    config = getattr(transformers, f"{family}Config")(**COMMON | FAMILIES[family] | extra)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:  # biases too, which would be zeros
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def plain(family, tmp_path):
    """A model in full precision, on disk."""
    tiny(family).save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


def load(path, **arguments):
    """Loaded, and nothing was missing, left over or of another shape."""
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **arguments)
    assert not any(info.values()), info
    return model


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def quantized_in_place(path, format, **arguments):
    model = AutoModelForCausalLM.from_pretrained(path)
    bs.quantize_(model, format, importance=None, **arguments)  # nothing runs while it is loaded
    return model


def packed(model):
    kinds = (bs.nn.Linear, bs.nn.Experts)
    return {name: m for name, m in model.named_modules() if isinstance(m, kinds)}


# --- quantised while it is loaded ---


def test_loading_quantizes_as_quantize_does(plain):
    loaded = load(plain, quantization_config=BlockscaleConfig(MIXED, scale="absmax"))
    twin = quantized_in_place(plain, MIXED, scale="absmax")
    assert packed(loaded).keys() == packed(twin).keys()
    assert not any(part.is_meta for part in loaded.state_dict().values())
    assert torch.equal(logits(loaded), logits(twin))
    assert torch.equal(
        loaded.generate(TOKENS, max_new_tokens=6, do_sample=False),
        twin.generate(TOKENS, max_new_tokens=6, do_sample=False),
    )


def test_layers_and_activations_are_chosen_by_the_config(tmp_path):
    tiny("Llama").save_pretrained(tmp_path / "x")
    config = BlockscaleConfig("mxfp8", layers=["*.mlp.*"], x_format="mxfp8")
    loaded = load(tmp_path / "x", quantization_config=config)
    assert {name.split(".")[-2] for name in packed(loaded)} == {"mlp"}
    assert {module.x_format for module in packed(loaded).values()} == {bs.MXFP8}
    twin = quantized_in_place(tmp_path / "x", "mxfp8", where="*.mlp.*", x_format="mxfp8")
    assert torch.equal(logits(loaded), logits(twin))


@pytest.fixture
def quick_collections():
    """What exists already is left out, which is most of the time that gc.collect takes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_one_weight_is_in_memory_at_a_time(tmp_path, monkeypatch, quick_collections):
    from blockscale.models.pretrained.on_load import QuantizeOnLoad

    tiny("Qwen3Moe").save_pretrained(tmp_path / "x")
    convert, seen, alive = QuantizeOnLoad.convert, [], []

    def watched(self, input_dict, **context):
        gc.collect()
        alive.append(sum(reference() is not None for reference in seen))
        values = [v[0] if isinstance(v, list) else v for v in input_dict.values()]
        seen.extend(weakref.ref(value) for value in values)
        return convert(self, input_dict, **context)

    monkeypatch.setattr(QuantizeOnLoad, "convert", watched)
    load(tmp_path / "x", quantization_config=BlockscaleConfig("nvfp4"))
    assert len(seen) == 2 * (4 + 2)
    assert max(alive) <= 2  # k and q, which wait for v: the three share a tensor scale
    seen.clear(), alive.clear()
    load(tmp_path / "x", quantization_config=BlockscaleConfig("mxfp4"))
    assert set(alive) == {0}


def test_what_was_quantised_on_load_is_saved_for_engines(tmp_path):
    """NVFP4, with the shared tensor scales that the dialect wants."""
    tiny("Llama").save_pretrained(tmp_path / "x")
    model = load(tmp_path / "x", quantization_config=BlockscaleConfig("nvfp4"))
    bs.save(model, tmp_path / "q", dialect="compressed-tensors")
    found = bs.load(tmp_path / "q")
    for name, layer in packed(model).items():
        assert found[f"{name}.weight"] == layer.weight


def test_tied_weights_stay_tied(tmp_path):
    tiny("Llama", tie_word_embeddings=True).save_pretrained(tmp_path / "x")
    loaded = load(tmp_path / "x", quantization_config=BlockscaleConfig("nvfp4", layers="*"))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    loaded.save_pretrained(tmp_path / "y")
    assert torch.equal(logits(load(tmp_path / "y")), logits(loaded))


# --- saved and loaded again ---


FRESH = """
import sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
import blockscale.integrations.transformers
found = {}
for path in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(path)
    tokens = torch.arange(12)[None] * 7 % 128
    with torch.no_grad():
        found[path] = model(tokens).logits
save_file(found, sys.argv[1])
"""


def test_a_fresh_process_computes_the_same(tmp_path):
    expected = {}
    for family in FAMILIES:
        for number, format in enumerate(("nvfp4", MIXED)):
            source, target = tmp_path / family, tmp_path / f"{family}-{number}"
            tiny(family).save_pretrained(source)
            x_format = "int8" if number else None
            config = BlockscaleConfig(format, x_format=x_format, scale="absmax")
            model = load(source, quantization_config=config)
            model.save_pretrained(target)
            expected[str(target)] = logits(model)
    arguments = [sys.executable, "-c", FRESH, tmp_path / "found", *expected]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=hanging.SECONDS)
    assert result.returncode == 0, result.stderr
    found = load_file(tmp_path / "found")
    assert found.keys() == expected.keys()
    for path, wanted in expected.items():
        assert torch.equal(found[path], wanted), path


def test_saved_models_are_read_without_transformers(plain, tmp_path):
    model = load(plain, quantization_config=BlockscaleConfig(MIXED, scale="absmax"))
    model.save_pretrained(tmp_path / "q", max_shard_size="40KB")
    described = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    assert described["quant_method"] == "blockscale"
    found = bs.load(tmp_path / "q")
    held = {
        f"{path}.{name}": q.dequantize()
        for path, module in packed(model).items()
        for name, q in module.qtensors().items()
    }
    assert {name for name, value in found.items() if isinstance(value, bs.QTensor)} == held.keys()
    for name, numbers in held.items():
        assert torch.equal(found[name].dequantize(), numbers), name
    twin = AutoModelForCausalLM.from_pretrained(plain)
    bs.load_into(twin, tmp_path / "q")
    assert torch.equal(logits(twin), logits(model))
    result = CliRunner().invoke(cli.commands, ["inspect", str(tmp_path / "q")])
    assert result.exit_code == 0, result.output
    assert "kbit4" in result.output


def test_a_model_is_saved_over_itself(tmp_path):
    """Its bytes are its own: the files that they came from may go."""
    tiny("Qwen3Moe").save_pretrained(tmp_path / "x")
    config = BlockscaleConfig("mxfp4", scale="absmax")
    load(tmp_path / "x", quantization_config=config).save_pretrained(tmp_path / "q")
    model = load(tmp_path / "q")
    model.save_pretrained(tmp_path / "q")
    assert torch.equal(logits(load(tmp_path / "q")), logits(model))


def test_a_loaded_model_is_saved_for_other_engines(tmp_path):
    pytest.importorskip("compressed_tensors")
    tiny("Llama").save_pretrained(tmp_path / "x")
    model = load(tmp_path / "x", quantization_config=BlockscaleConfig("mxfp8"))
    bs.save(model, tmp_path / "q")
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    assert config["quantization_config"]["format"] == "mxfp8-quantized"
    assert torch.equal(logits(load(tmp_path / "q")), logits(model))


@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
def test_device_maps_place_packed_layers(tmp_path, device_map):
    pytest.importorskip("accelerate")
    tiny("Qwen3Moe").save_pretrained(tmp_path / "x")
    config = BlockscaleConfig("nvfp4", scale="absmax")
    model = load(tmp_path / "x", quantization_config=config, device_map=device_map)
    model.save_pretrained(tmp_path / "q")
    again = load(tmp_path / "q", device_map=device_map)
    assert len({part.device for part in again.state_dict().values()}) == 1
    expected = logits(model.cpu())
    torch.testing.assert_close(logits(again.cpu()), expected, rtol=1e-4, atol=1e-4)


def test_a_model_without_its_head_finds_its_layers(tmp_path):
    tiny("Mixtral").save_pretrained(tmp_path / "x")
    whole = load(tmp_path / "x", quantization_config=BlockscaleConfig("kbit4"))
    whole.save_pretrained(tmp_path / "q")
    body = transformers.AutoModel.from_pretrained(tmp_path / "q")
    with torch.no_grad():
        states, wanted = body(TOKENS), whole.model(TOKENS)
    assert packed(body).keys() == {name.removeprefix("model.") for name in packed(whole)}
    assert torch.equal(states.last_hidden_state, wanted.last_hidden_state)


def test_casts_leave_the_packed_numbers_alone(tmp_path):
    tiny("GptOss").save_pretrained(tmp_path / "x")
    config = BlockscaleConfig("nvfp4", scale="absmax")
    load(tmp_path / "x", quantization_config=config).save_pretrained(tmp_path / "q")
    half, full = load(tmp_path / "q", dtype=torch.bfloat16), load(tmp_path / "q")
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    for name, module in packed(half).items():
        assert module.qtensors() == packed(full)[name].qtensors()


# --- checkpoints of the ecosystem ---


@pytest.mark.parametrize(
    ("dialect", "format"),
    [
        ("compressed-tensors", "nvfp4"),
        ("compressed-tensors", "mxfp4"),
        ("compressed-tensors", "mxfp6_e2m3"),
        ("compressed-tensors", "mxfp8"),
        ("modelopt", "nvfp4"),
        ("modelopt", "mxfp8"),
        ("blockscale", "kbit3"),
    ],
)
def test_checkpoints_keep_their_bytes(plain, family, dialect, format, tmp_path, caplog):
    if dialect == "compressed-tensors":
        pytest.importorskip("compressed_tensors")
    caplog.set_level(logging.INFO, "blockscale")
    plan = plan_conversion(plain, Settings(bs.format(format), dialect=dialect))
    run_plan(plan, tmp_path / "q")
    model = load(tmp_path / "q")
    assert f"of {dialect}, kept packed" in caplog.text
    twin = AutoModelForCausalLM.from_pretrained(plain)
    if family != "Mixtral":  # whose names on disk are not those of the model
        bs.load_into(twin, tmp_path / "q")
        assert packed(twin).keys() == packed(model).keys()
        assert torch.equal(logits(model), logits(twin))
    else:
        assert len(packed(model)) == 2 * (4 + 1)
        stored = bs.load(tmp_path / "q")
        for number, q in enumerate(model.model.layers[1].mlp.experts.up):
            name = f"model.layers.1.block_sparse_moe.experts.{number}.w3.weight"
            assert torch.equal(q.dequantize(), stored[name].dequantize())
    model.save_pretrained(tmp_path / "again")  # in our dialect, whatever it came from
    assert torch.equal(logits(load(tmp_path / "again")), logits(model))


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8"])
def test_tied_heads_load_where_nobody_knows_of_this_library(tmp_path, format):
    """A tied head stores nothing, and must not be taken for a quantised layer."""
    pytest.importorskip("compressed_tensors")
    integration.unregister()
    model = tiny("Llama", tie_word_embeddings=True, dtype="bfloat16").bfloat16()
    model.save_pretrained(tmp_path / "plain")
    run_plan(plan_conversion(tmp_path / "plain", Settings(bs.format(format))), tmp_path / "q")
    theirs = load(tmp_path / "q")
    assert torch.equal(theirs.lm_head.weight, model.lm_head.weight)
    assert logits(theirs).isfinite().all()  # which decompresses the layers
    for name, stored in bs.load(tmp_path / "q").items():
        if isinstance(stored, bs.QTensor):
            found = theirs.get_parameter(name)
            # bfloat16 of a product: at most two roundings of 2^-8 each
            torch.testing.assert_close(found, stored.dequantize(found.dtype), rtol=2**-7, atol=0)


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize(
    ("stored", "heads"),
    [
        (["model.embed_tokens"], ["lm_head"]),
        (["model.embed_tokens", "lm_head"], []),
        (
            ["bert.embeddings.word_embeddings", "cls.predictions.transform.dense"],
            ["lm_head", "cls.predictions.decoder"],
        ),
        (["encoder.dense"], []),
    ],
)
def test_heads_that_store_nothing_are_not_called_quantised(tmp_path, dialect, stored, heads):
    tensors = {f"{module}.weight": torch.randn(8, 64) for module in stored}
    tensors["a.up_proj.weight"] = bs.quantize(torch.randn(8, 64), bs.NVFP4)
    bs.save(tensors, tmp_path / "q", dialect=dialect)
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    assert config["quantization_config"]["ignore"] == [*stored, *heads]
    if dialect == "modelopt":
        side = json.loads((tmp_path / "q" / "hf_quant_config.json").read_text())
        assert side["quantization"]["exclude_modules"] == [*stored, *heads]


@pytest.fixture
def gpt_oss(tmp_path):
    """As the model is published: MXFP4 experts, everything else plain."""
    model = tiny("GptOss")
    model.save_pretrained(tmp_path / "plain")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    for name in [name for name in tensors if re.search(r"experts\.\w+_proj$", name)]:
        q = bs.quantize(tensors.pop(name).mT.contiguous(), bs.MXFP4)  # [e, n, k]
        tensors[f"{name}_blocks"] = q.codes.unflatten(-1, (-1, 16)).contiguous()
        tensors[f"{name}_scales"] = q.scale
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    folder = tmp_path / "gpt-oss"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_gpt_oss_computes_what_transformers_computes(gpt_oss):
    """Packed here; there, on request, decoded to full precision."""
    model = load(gpt_oss)
    assert len(packed(model)) == 2
    dequantized = transformers.Mxfp4Config(dequantize=True)
    theirs = AutoModelForCausalLM.from_pretrained(gpt_oss, quantization_config=dequantized)
    assert not packed(theirs)
    theirs.float()  # MXFP4 is exact in the bfloat16 it decodes to
    torch.testing.assert_close(logits(model), logits(theirs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("label", "preset"),
    [
        ("nvfp4-pack-quantized", "NVFP4A16"),
        ("mxfp4-pack-quantized", "MXFP4A16"),
        ("mxfp6-pack-quantized", "MXFP6A16"),
        ("mxfp8-quantized", "MXFP8A16"),
    ],
)
def test_what_compressed_tensors_wrote_is_kept_packed(label, preset, tmp_path):
    """Weights, scales and config of the library itself."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationStatus,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.format = label
    compressor = BaseCompressor.get_value_from_registry(label)
    model = tiny("Llama")
    tensors, meant = dict(model.state_dict()), {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        w = tensors.pop(name)
        blocks = w.unflatten(-1, (-1, scheme.weights.group_size))
        given = {"weight": w}
        if label.startswith("nvfp4"):
            given["weight_global_scale"] = generate_gparam(w.min(), w.max())
        scale, zero = calculate_qparams(
            blocks.amin(-1), blocks.amax(-1), scheme.weights, given.get("weight_global_scale")
        )
        given |= {"weight_scale": scale, "weight_zero_point": zero}
        stored = compressor.compress(given, scheme)
        tensors |= {name.replace("weight", role): part for role, part in stored.items()}
        meant[name] = compressor.decompress(stored, scheme)["weight"]
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=label,
        ignore=["lm_head"],
        quantization_status=QuantizationStatus.COMPRESSED,
    )
    model.save_pretrained(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    described["quantization_config"] = json.loads(config.model_dump_json())
    (tmp_path / "config.json").write_text(json.dumps(described))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = packed(load(tmp_path))
    assert {f"{name}.weight" for name in loaded} == meant.keys()
    for name, module in loaded.items():
        wanted = meant[f"{name}.weight"]
        assert torch.equal(module.dequantize(wanted.dtype), wanted)


@pytest.mark.parametrize("config", ["NVFP4_DEFAULT_CFG", "MXFP8_DEFAULT_CFG"])
def test_what_modelopt_exports_is_kept_packed(config, tmp_path):
    mtq = pytest.importorskip("modelopt.torch.quantization")
    export = pytest.importorskip("modelopt.torch.export")
    if not hasattr(mtq, config):
        pytest.skip(f"this ModelOpt has no {config}")
    model = tiny("Llama", architectures=["LlamaForCausalLM"], dtype="bfloat16").bfloat16()
    model = mtq.quantize(model, getattr(mtq, config), lambda m: m(TOKENS))
    export.export_hf_checkpoint(model, export_dir=tmp_path / "q")
    loaded = load(tmp_path / "q", dtype=torch.float32)
    found = bs.load(tmp_path / "q")
    assert len(packed(loaded)) == 14
    for name, module in packed(loaded).items():
        assert module.weight == found[f"{name}.weight"]
    assert logits(loaded).isfinite().all()


# --- who acts ---


def described(label):
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    if label == "pack-quantized":
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    group = {"targets": ["Linear"], "weights": weights, "format": label}
    return {
        "quant_method": "compressed-tensors",
        "format": label,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
    }


@pytest.mark.parametrize(
    ("label", "arguments", "who"),
    [
        ("nvfp4-pack-quantized", {}, "blockscale"),
        ("nvfp4-pack-quantized", {"dequantize": True}, "transformers"),
        ("pack-quantized", {}, "transformers"),
    ],
)
def test_other_formats_and_wishes_are_left_to_transformers(label, arguments, who, caplog):
    pytest.importorskip("compressed_tensors")
    caplog.set_level(logging.INFO, "blockscale")
    quantizer = auto.AutoHfQuantizer.from_config(described(label) | arguments, pre_quantized=True)
    assert isinstance(quantizer, integration.BlockscaleQuantizer) == (who == "blockscale")
    assert f"compressed-tensors: {who} acts" in caplog.text


def test_registration_is_reversible_and_done_once():
    def known():
        return dict(auto.AUTO_QUANTIZER_MAPPING), dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)

    integration.unregister()
    before = known()
    assert "blockscale" not in before[0]
    integration.register()
    after = known()
    integration.register()
    assert known() == after
    assert after != before
    integration.unregister()
    integration.unregister()
    assert known() == before


# --- compiled ---


def test_a_loaded_model_breaks_no_graph(plain):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = load(plain, quantization_config=BlockscaleConfig("nvfp4", scale="absmax"))
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        compiled = run(TOKENS, use_cache=False).logits
    torch.testing.assert_close(compiled, logits(model), rtol=1e-4, atol=1e-5)
    assert not torch._dynamo.utils.counters["graph_break"]


# --- mistakes ---


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"format": "nvfp5"}, ValueError, "nvfp5"),
        ({"format": {"*": "nvfp5"}}, ValueError, "nvfp5"),
        ({"format": "nvfp4", "scale": "best"}, ValueError, "scale='best' does not apply to nvfp4"),
        ({"format": "nvfp4", "x_format": "int9"}, ValueError, "int9"),
        ({"format": "nvfp4", "layers": [3]}, TypeError, "got 3 among them"),
        ({"quant_method": "mxfp4"}, ValueError, "is for quant_method 'blockscale', not 'mxfp4'"),
    ],
)
def test_wrong_configs_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        BlockscaleConfig(**arguments)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BlockscaleConfig(), "needs a format to quantise this model"),
        (BlockscaleConfig("nvfp4", layers="*.nothing"), "every layer of LlamaForCausalLM"),
    ],
)
def test_configs_that_fit_no_model_are_refused(config, message, tmp_path):
    tiny("Llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config)


@pytest.fixture
def saved(tmp_path):
    tiny("Qwen3").save_pretrained(tmp_path / "x")
    model = load(tmp_path / "x", quantization_config=BlockscaleConfig("mxfp8"))
    model.save_pretrained(tmp_path / "q")
    return tmp_path / "q"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["quantization_config"].update(version=9), "layout version 9 is not read"),
        (
            lambda c: c["quantization_config"].update(version=1, tensors={}),
            "no layer of Qwen3ForCausalLM has",
        ),
        (lambda c: c.update(intermediate_size=64), r"is \[96, 64\], the model's layer is \[64, 64"),
        (
            lambda c: c.update(quantization_config={"quant_method": "modelopt", "quant_algo": "F"}),
            "ModelOpt quant_algo 'F' is not read",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(saved, change, message):
    config = json.loads((saved / "config.json").read_text())
    change(config)
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(saved)


def test_a_state_dict_holds_no_packed_weights(saved):
    state = load_file(saved / "model.safetensors")
    config = transformers.AutoConfig.from_pretrained(saved)
    with pytest.raises(ValueError, match="packed weights are read from files"):
        transformers.Qwen3ForCausalLM.from_pretrained(None, config=config, state_dict=state)


def test_offloaded_layers_are_refused(saved):
    model = load(saved)
    model.hf_device_map = {"model": 0, "lm_head": "cpu"}
    with pytest.raises(ValueError, match="packed layers are not offloaded"):
        model.hf_quantizer.postprocess_model(model)
