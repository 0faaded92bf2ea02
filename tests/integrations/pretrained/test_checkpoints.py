"""Checkpoints of the ecosystem through `from_pretrained`, and who reads which."""

import importlib
import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.checkpoint import Settings, parse_rules, plan_conversion, run_plan
from integrations.pretrained.tiny import (
    TOKENS,
    AutoModelForCausalLM,
    integration,
    load,
    logits,
    packed,
    tiny,
    transformers,
)

auto = importlib.import_module("transformers.quantizers.auto")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many


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
def test_checkpoints_keep_their_bytes(plain, family, dialect, format, tmp_path, logged):
    if dialect == "compressed-tensors":
        pytest.importorskip("compressed_tensors")
    plan = plan_conversion(plain, Settings(bs.format(format), dialect=dialect))
    run_plan(plan, tmp_path / "q")
    model = load(tmp_path / "q")
    assert f"of {dialect}, kept packed" in str(logged)
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


def test_a_head_that_is_quantised_is_loaded_where_it_was_tied(tmp_path):
    """Of a model that stores its tied head as well."""
    model = tiny("Llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "plain")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "plain" / "model.safetensors", metadata={"format": "pt"})
    settings = Settings(bs.NVFP4, parse_rules(["lm_head=nvfp4"]))
    run_plan(plan_conversion(tmp_path / "plain", settings), tmp_path / "q")
    loaded = load(tmp_path / "q")
    assert loaded.lm_head.weight == bs.load(tmp_path / "q")["lm_head.weight"]
    assert torch.equal(loaded.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert logits(loaded).isfinite().all()


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
def test_other_formats_and_wishes_are_left_to_transformers(label, arguments, who, logged):
    pytest.importorskip("compressed_tensors")
    quantizer = auto.AutoHfQuantizer.from_config(described(label) | arguments, pre_quantized=True)
    assert isinstance(quantizer, integration.BlockscaleQuantizer) == (who == "blockscale")
    assert f"compressed-tensors: {who} acts" in str(logged)


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
