"""Checkpoints written by the real libraries are read here, and they read ours."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.checkpoint import Checkpoint, load, save

pytestmark = pytest.mark.filterwarnings("ignore")

LABELS = {
    "nvfp4": "nvfp4-pack-quantized",
    "mxfp4": "mxfp4-pack-quantized",
    "mxfp6_e2m3": "mxfp6-pack-quantized",
    "mxfp8": "mxfp8-quantized",
}


def write(folder, tensors, quantization_config, **config):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**config, "quantization_config": quantization_config}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tiny_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    return transformers.LlamaForCausalLM(config).bfloat16()


# --- compressed-tensors ---


@pytest.fixture
def compressed_tensors():
    return pytest.importorskip("compressed_tensors")


def scheme_of(label, preset):
    from compressed_tensors.quantization import preset_name_to_scheme

    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.format = label
    return scheme


def compressor_of(label):
    from compressed_tensors.compressors import BaseCompressor

    return BaseCompressor.get_value_from_registry(label)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("nvfp4", "NVFP4A16"),
        ("mxfp4", "MXFP4A16"),
        ("mxfp6_e2m3", "MXFP6A16"),
        ("mxfp8", "MXFP8A16"),
    ],
)
def test_compressed_tensors_writes_and_we_read(compressed_tensors, name, preset, tmp_path):
    """Its own compression of a weight, with scales it would choose, decodes to the same values."""
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme, compressor = scheme_of(LABELS[name], preset), compressor_of(LABELS[name])
    w = torch.randn(24, 128)
    blocks = w.unflatten(-1, (-1, scheme.weights.group_size))
    given = {"weight": w}
    if name == "nvfp4":
        given["weight_global_scale"] = generate_gparam(w.min(), w.max())
    scale, zero = calculate_qparams(
        blocks.amin(-1), blocks.amax(-1), scheme.weights, given.get("weight_global_scale")
    )
    stored = compressor.compress(
        {**given, "weight_scale": scale, "weight_zero_point": zero}, scheme
    )
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=LABELS[name],
        quantization_status=QuantizationStatus.COMPRESSED,
    )
    folder = write(
        tmp_path / "x",
        {f"a.{k}": v for k, v in stored.items()},
        json.loads(config.model_dump_json()),
    )
    found = load(folder)
    assert found.keys() == {"a.weight"}
    assert found["a.weight"].format == bs.format(name)
    theirs = compressor.decompress(stored, scheme)["weight"]
    assert torch.equal(found["a.weight"].dequantize(theirs.dtype), theirs)


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("static", [False, True])
def test_we_write_and_compressed_tensors_reads(compressed_tensors, name, static, tmp_path):
    from compressed_tensors.quantization import QuantizationConfig

    q = bs.quantize(torch.randn(24, 128), name)
    tensors = {"a.weight": q, "lm_head.weight": torch.randn(4, 128)}
    if static and name == "nvfp4":
        tensors["a.input_scale"] = torch.tensor(0.25)
    save(tensors, tmp_path / "x")
    written = json.loads((tmp_path / "x" / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(written)  # refuses keys that it does not know
    assert config.format == LABELS[name]
    assert config.ignore == ["lm_head"]
    scheme = config.config_groups["group_0"]
    preset = scheme_of(LABELS[name], "NVFP4" if static and name == "nvfp4" else f"{name[:5]}A16")
    wanted = preset.model_dump()
    found = scheme.model_dump()
    assert found["weights"] == wanted["weights"]
    assert (found["input_activations"] is None) == (wanted["input_activations"] is None)
    stored = {
        k[2:]: v for k, v in load_file(tmp_path / "x" / "model.safetensors").items() if k[0] == "a"
    }
    theirs = compressor_of(LABELS[name]).decompress(stored, scheme)["weight"]
    assert torch.equal(theirs, q.dequantize(theirs.dtype))


def test_quantised_attention_says_nothing_of_weights(compressed_tensors, tmp_path):
    """Its group of the description has the format "dense", and scales are beside the layers."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    model = tiny_model()
    queries = QuantizationArgs(num_bits=8, type="float", strategy="tensor", dynamic=False)
    attention = QuantizationScheme(targets=["LlamaAttention"], input_activations=queries)
    linear = scheme_of(LABELS["mxfp8"], "MXFP8A16")
    groups = {"weights": linear, "attention": attention}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
    weights = {}
    for name, module in model.named_modules():
        if hasattr(module, "weight_scale"):
            blocks = module.weight.unflatten(-1, (-1, 32))
            scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), linear.weights)
            module.weight_scale.data.copy_(scale)
            weights[f"{name}.weight"] = module.weight.shape
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path / "x")
    compressor.update_config(tmp_path / "x")
    found = load(tmp_path / "x")
    packed = {name: tuple(q.shape) for name, q in found.items() if isinstance(q, bs.QTensor)}
    assert packed == weights
    assert "model.layers.0.self_attn.q_scale" in found
    twin = tiny_model()
    bs.load_into(twin, tmp_path / "x")
    name, layer = "model.layers.0.mlp.up_proj", model.model.layers[0].mlp.up_proj
    theirs = compressor_of(LABELS["mxfp8"]).decompress(dict(layer.state_dict()), linear)["weight"]
    assert torch.equal(twin.get_submodule(name).weight.dequantize(theirs.dtype), theirs)


def test_transformers_loads_what_we_write(compressed_tensors, tmp_path):
    model = tiny_model()
    tensors = {
        name: bs.quantize(w.data, bs.NVFP4, tensor_scale=0.001) if "_proj" in name else w.data
        for name, w in model.state_dict().items()
    }
    save(
        tensors,
        tmp_path / "x",
        config=model.config.to_dict(),
    )
    loaded = type(model).from_pretrained(tmp_path / "x")
    loaded(torch.arange(4)[None])  # decompresses
    for name, w in loaded.state_dict().items():
        if name in tensors and isinstance(tensors[name], bs.QTensor):
            assert torch.equal(w, tensors[name].dequantize(w.dtype)), name


def test_mixed_formats_are_described_to_compressed_tensors(compressed_tensors, tmp_path):
    from compressed_tensors.quantization import QuantizationConfig

    tensors = {f"{name}.weight": bs.quantize(torch.randn(4, 64), name) for name in LABELS}
    save(tensors, tmp_path / "x")
    written = json.loads((tmp_path / "x" / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(written)
    assert config.format == "mixed-precision"
    found = {group.targets[0]: group.format for group in config.config_groups.values()}
    assert found == LABELS
    assert load(tmp_path / "x") == tensors


@pytest.mark.parametrize("label", ["pack-quantized", "float-quantized", None])
def test_other_compressed_formats_are_refused_by_name(label, tmp_path):
    config = {"quant_method": "compressed-tensors", "format": label, "config_groups": {"g": {}}}
    folder = write(tmp_path / "x", {"a.weight": torch.zeros(2)}, config)
    with pytest.raises(ValueError, match=f"compressed-tensors format {label!r} is not read"):
        load(folder)


# --- ModelOpt ---


@pytest.mark.parametrize(
    ("config", "algorithm", "format"),
    [
        ("NVFP4_DEFAULT_CFG", "NVFP4", bs.NVFP4),
        ("W4A16_NVFP4_CFG", "W4A16_NVFP4", bs.NVFP4),
        ("MXFP8_DEFAULT_CFG", "MXFP8", bs.MXFP8),
    ],
)
def test_modelopt_exports_and_we_read(config, algorithm, format, tmp_path):
    """A whole export: tensors, config, side file; written again, it is the same in every byte."""
    mtq = pytest.importorskip("modelopt.torch.quantization")
    export = pytest.importorskip("modelopt.torch.export")
    if not hasattr(mtq, config):
        pytest.skip(f"this ModelOpt has no {config}")
    model = tiny_model()
    model = mtq.quantize(model, getattr(mtq, config), lambda m: m(torch.arange(8)[None]))
    export.export_hf_checkpoint(model, export_dir=tmp_path / "theirs")
    found = load(tmp_path / "theirs")
    quantised = {name for name, value in found.items() if isinstance(value, bs.QTensor)}
    assert quantised == {name for name in model.state_dict() if name.endswith("_proj.weight")}
    assert {found[name].format for name in quantised} == {format}

    save(found, tmp_path / "ours", dialect="modelopt")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert ours[name].shape == tensor.shape, name
        assert torch.equal(
            ours[name].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)
        )
    side = [
        json.loads((tmp_path / d / "hf_quant_config.json").read_text()) for d in ("theirs", "ours")
    ]
    assert side[1]["producer"]["name"] == side[0]["producer"]["name"]
    assert side[1]["quantization"]["quant_algo"] == algorithm
    assert side[1]["quantization"].keys() == side[0]["quantization"].keys()
    (tmp_path / "theirs" / "config.json").write_text("{}")  # as older versions left it
    assert load(tmp_path / "theirs").keys() == found.keys()


@pytest.mark.parametrize("static", [False, True])
def test_modelopt_understands_our_description(static, tmp_path):
    """config.json is what ModelOpt itself makes of our hf_quant_config.json."""
    convert = pytest.importorskip("modelopt.torch.export.convert_hf_config")
    tensors = {"a.weight": bs.quantize(torch.randn(4, 64), bs.NVFP4), "b.weight": torch.randn(4, 4)}
    if static:
        tensors["a.input_scale"] = torch.tensor(0.5)
    save(tensors, tmp_path / "x", dialect="modelopt")
    side = json.loads((tmp_path / "x" / "hf_quant_config.json").read_text())
    config = json.loads((tmp_path / "x" / "config.json").read_text())["quantization_config"]
    assert convert.convert_hf_quant_config_format(side) == config


def test_modelopt_understands_mixed_formats(tmp_path):
    convert = pytest.importorskip("modelopt.torch.export.convert_hf_config")
    q = {f: bs.quantize(torch.randn(4, 64), f) for f in (bs.NVFP4, bs.MXFP8)}
    save({"a.weight": q[bs.NVFP4], "b.weight": q[bs.MXFP8]}, tmp_path / "x", dialect="modelopt")
    side = json.loads((tmp_path / "x" / "hf_quant_config.json").read_text())
    config = json.loads((tmp_path / "x" / "config.json").read_text())["quantization_config"]
    assert config["quant_algo"] == "MIXED_PRECISION"
    assert convert.convert_hf_quant_config_format(side) == config
    assert load(tmp_path / "x") == {"a.weight": q[bs.NVFP4], "b.weight": q[bs.MXFP8]}


# --- gpt-oss ---


def test_gpt_oss_experts_decode_as_transformers_decodes_them(tmp_path):
    """Rows are moved apart (all gates, then all ups); each value is the one transformers sees."""
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    experts, i, h = 3, 32, 64
    blocks = torch.randint(0, 256, (experts, 2 * i, h // 32, 16), dtype=torch.uint8)
    scales = torch.randint(120, 130, (experts, 2 * i, h // 32), dtype=torch.uint8)
    bias = torch.randn(experts, 2 * i).bfloat16()
    tensors = {
        "l.experts.gate_up_proj_blocks": blocks,
        "l.experts.gate_up_proj_scales": scales,
        "l.experts.gate_up_proj_bias": bias,
        "l.experts.down_proj_blocks": blocks[:, :h, : i // 32].contiguous(),
        "l.experts.down_proj_scales": scales[:, :h, : i // 32].contiguous(),
        "l.router.weight": torch.randn(3, 64),
    }
    folder = write(tmp_path / "x", tensors, {"quant_method": "mxfp4"}, model_type="gpt_oss")
    found = load(folder)
    assert Checkpoint(folder).dialect.NAME == "gpt-oss"
    gate_up, down = found["l.experts.gate_up_proj"], found["l.experts.down_proj"]
    assert gate_up.shape == (experts, 2 * i, h)
    assert down.shape == (experts, h, i)
    theirs = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [e, h, 2i]
    theirs = theirs.transpose(1, 2)
    assert torch.equal(gate_up[:, :i].dequantize(), theirs[:, 0::2])
    assert torch.equal(gate_up[:, i:].dequantize(), theirs[:, 1::2])
    ours = found["l.experts.gate_up_proj_bias"]
    assert torch.equal(ours, torch.cat([bias[:, 0::2], bias[:, 1::2]], 1))
    their_down = mxfp4.convert_moe_packed_tensors(
        tensors["l.experts.down_proj_blocks"],
        tensors["l.experts.down_proj_scales"],
        dtype=torch.float32,
    )
    assert torch.equal(down.dequantize(), their_down.transpose(1, 2))


# --- bitsandbytes ---


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [64, 128])
def test_bitsandbytes_weights_decode_alike(kind, nested, block, tmp_path):
    functional = pytest.importorskip("bitsandbytes.functional")
    w = torch.randn(48, 256)
    w[0, :64] = 0
    packed, state = functional.quantize_4bit(
        w, quant_type=kind, compress_statistics=nested, blocksize=block
    )
    stored = {f"a.weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    folder = write(tmp_path / "x", {"a.weight": packed, **stored}, config)
    found = load(folder)
    assert found.keys() == {"a.weight"}
    q = found["a.weight"]
    assert (q.format.block, q.shape) == (block, (48, 256))
    if block == 64:
        assert q.format == bs.format(f"bnb_{kind}")
    theirs = functional.dequantize_4bit(packed, state)
    if nested:  # it may add the mean with or without a fused multiply
        torch.testing.assert_close(q.dequantize(), theirs, rtol=2.0**-22, atol=0)
    else:
        assert torch.equal(q.dequantize(), theirs)
    save(found, tmp_path / "y")
    assert load(tmp_path / "y") == found


@pytest.mark.parametrize("storage", ["int8", "bfloat16", "float32"])
def test_bitsandbytes_weights_may_be_stored_in_any_dtype(storage, tmp_path):
    """`bnb_4bit_quant_storage`: FSDP wants one dtype for all that it shards."""
    functional = pytest.importorskip("bitsandbytes.functional")
    packed, state = functional.quantize_4bit(
        torch.randn(48, 256), quant_type="nf4", quant_storage=getattr(torch, storage)
    )
    stored = {f"a.weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    config = {"quant_method": "bitsandbytes", "bnb_4bit_quant_storage": storage}
    folder = write(tmp_path / "x", {"a.weight": packed, **stored}, config)
    found = load(folder)
    assert torch.equal(found["a.weight"].dequantize(), functional.dequantize_4bit(packed, state))
