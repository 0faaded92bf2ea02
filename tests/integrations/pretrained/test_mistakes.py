"""Configs and checkpoints that `from_pretrained` refuses."""

import importlib
import json

import pytest
from safetensors.torch import load_file

from integrations.pretrained.tiny import (
    AutoModelForCausalLM,
    BlockscaleConfig,
    load,
    tiny,
    transformers,
)

auto = importlib.import_module("transformers.quantizers.auto")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many


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
