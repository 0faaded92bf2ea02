"""Packed models saved and loaded again: by transformers, by this library, for other engines."""

import importlib
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import blockscale as bs
import hanging
from blockscale import cli
from integrations.pretrained.tiny import (
    FAMILIES,
    MIXED,
    TOKENS,
    AutoModelForCausalLM,
    BlockscaleConfig,
    load,
    logits,
    packed,
    tiny,
    transformers,
)

auto = importlib.import_module("transformers.quantizers.auto")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many


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


def test_the_config_says_what_layers_quantise_inputs_to(plain, tmp_path, capsys):
    """By then, and the config that the model was loaded with stays as the caller made it."""
    config = BlockscaleConfig("kbit4", scale="absmax")
    model = load(plain, quantization_config=config)
    layers = packed(model).values()
    for layer in layers:
        layer.x_format = "int8"
    model.save_pretrained(tmp_path / "q")
    again = load(tmp_path / "q")
    assert {layer.x_format for layer in packed(again).values()} == {"int8"}
    assert torch.equal(logits(again), logits(model))
    assert config.x_format is None
    next(iter(layers)).x_format = None
    model.save_pretrained(tmp_path / "mixed")
    assert "layers have different x_format (None, int8)" in capsys.readouterr().err
    assert {layer.x_format for layer in packed(load(tmp_path / "mixed")).values()} == {None}


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


@pytest.mark.parametrize("shard_size", ["5GB", "40KB"])
def test_of_two_variants_in_a_folder_the_one_that_is_asked_for_is_loaded(tmp_path, shard_size):
    """Packed layers and the rest of the model are read from the same files."""
    variants = {}
    for name in (None, "b"):
        variants[name] = model = tiny("Llama")
        bs.quantize_(model, bs.MXFP8, importance=None)
        model.save_pretrained(tmp_path, variant=name, max_shard_size=shard_size)
    assert not torch.equal(logits(variants[None]), logits(variants["b"]))
    for name, model in variants.items():
        assert torch.equal(logits(load(tmp_path, variant=name)), logits(model))


def test_a_packed_model_is_saved_over_the_shards_of_another(tmp_path):
    model = tiny("Llama")
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    bs.quantize_(model, bs.MXFP8, importance=None)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path)), logits(model))


def test_shards_that_were_saved_beside_an_older_file_are_not_mixed_with_it(tmp_path):
    for shard_size in ("5GB", "40KB"):
        model = tiny("Llama")
        bs.quantize_(model, bs.MXFP8, importance=None)
        model.save_pretrained(tmp_path, max_shard_size=shard_size)
    with pytest.raises(ValueError, match="has two models"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert torch.equal(logits(load(tmp_path)), logits(model))


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
