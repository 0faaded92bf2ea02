"""vLLM gives the tokens of transformers with this library's layers: every kind of checkpoint."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.served_models import NEW, PROMPTS, offline, served

pytest.importorskip("vllm", reason="vLLM is in an environment of its own: make serving")

DENSE = [
    ("Llama", "blockscale", "nvfp4"),
    ("Qwen2", "blockscale", "kbit4"),  # with biases
    ("Phi3", "blockscale", "mxfp8"),  # qkv and gate_up are fused in the file
    ("Llama", "modelopt", "nvfp4"),
    ("Qwen2", "modelopt", "mxfp8"),
    ("Phi3", "compressed-tensors", "nvfp4"),
    ("Llama", "compressed-tensors", "mxfp4"),
    ("Qwen2", "compressed-tensors", "mxfp8"),
]
MIXTURES = [
    ("Qwen3Moe", "blockscale", "nvfp4"),  # fused experts
    ("Qwen3Moe", "modelopt", "mxfp8"),  # one by one
    ("Qwen3Moe", "compressed-tensors", "nvfp4"),
    ("GptOss", "gpt-oss", "mxfp4"),
]


@pytest.mark.parametrize(("family", "dialect", "format"), DENSE + MIXTURES)
def test_tokens_are_those_of_offline_generation(packed, engine, family, dialect, format):
    folder, expected = packed(family, dialect, format)
    llm = engine(folder)
    assert llm.llm_engine.model_config.quantization == "blockscale"
    assert served(llm) == expected


def test_compiled_models_give_the_same_tokens(packed, engine):
    folder, expected = packed("Llama", "blockscale", "nvfp4")
    assert served(engine(folder, enforce_eager=False)) == expected


def test_a_quantised_head(plain, engine, tmp_path):
    """Beside a vocabulary that vLLM pads."""
    import blockscale as bs
    from blockscale.checkpoint.convert import run_plan
    from blockscale.checkpoint.plan import Settings, plan_conversion
    from blockscale.checkpoint.select import Rule

    rules = (Rule("lm_head.weight", bs.MXFP8),)
    settings = Settings(bs.NVFP4, rules, dialect="blockscale")
    run_plan(plan_conversion(plain("Llama"), settings), tmp_path / "q")
    assert served(engine(tmp_path / "q")) == offline(tmp_path / "q", PROMPTS, NEW)


@pytest.mark.parametrize("x_format", ["mxfp8", "int8"])
def test_quantised_activations_are_asked_for(packed, engine, monkeypatch, x_format):
    folder, _ = packed("Llama", "blockscale", "nvfp4")
    monkeypatch.setenv("BLOCKSCALE_X_FORMAT", x_format)
    found = served(engine(folder))
    assert found == offline(folder, PROMPTS, NEW, x_format=x_format)


def test_a_dummy_load_reads_no_weights(packed, engine):
    folder, _ = packed("Qwen3Moe", "blockscale", "nvfp4")
    found = served(engine(folder, load_format="dummy"))
    assert [len(each) for each in found] == [NEW] * len(PROMPTS)


def test_weights_are_reloaded_in_place(packed, plain, engine, tmp_path):
    from serving.served_models import make_plain, pack

    folder, expected = packed("Qwen2", "blockscale", "kbit4")
    other = pack(make_plain("Qwen2", tmp_path / "p", seed=1), tmp_path / "q", "blockscale", "kbit4")
    llm = engine(folder)
    assert served(llm) == expected
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(other)})
    found = served(llm)
    assert found == offline(other, PROMPTS, NEW)
    assert found != expected


def test_a_packed_tensor_that_no_layer_reads_is_an_error(packed, engine, tmp_path):
    """Its name ends as that of a layer, which some loaders of vLLM's would pass over."""
    folder, _ = packed("Llama", "blockscale", "nvfp4")
    tensors = load_file(folder / "model.safetensors")
    extra = {
        name.replace("q_proj", "r_proj"): tensor.clone()
        for name, tensor in tensors.items()
        if "layers.0.self_attn.q_proj" in name
    }
    save_file(tensors | extra, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ValueError, match=r"r_proj.* no layer of the model reads it"):
        engine(tmp_path)


def without(name, folder, copy):
    """A checkpoint that lacks all tensors of one module."""
    tensors = load_file(folder / "model.safetensors")
    kept = {each: tensor for each, tensor in tensors.items() if f"{name}." not in each}
    assert len(kept) < len(tensors)
    save_file(kept, copy / "model.safetensors")
    (copy / "config.json").write_text((folder / "config.json").read_text())
    return copy


@pytest.mark.parametrize("name", ["self_attn.v_proj", "mlp.down_proj"])
def test_a_packed_weight_that_is_missing_is_an_error(packed, engine, tmp_path, name):
    folder, _ = packed("Llama", "blockscale", "nvfp4")
    with pytest.raises(ValueError, match=f"the checkpoint has no .*{name}"):
        engine(without(f"layers.1.{name}", folder, tmp_path))


@pytest.mark.parametrize("name", ["layers.1.input_layernorm", "model.norm", "lm_head"])
def test_a_plain_weight_that_is_missing_is_an_error(packed, engine, tmp_path, name):
    folder, _ = packed("Llama", "blockscale", "nvfp4")
    with pytest.raises(ValueError, match=f"not initialized .*{name}.weight"):
        engine(without(name, folder, tmp_path))


def test_the_comparison_with_the_file_can_be_turned_off(packed, engine, tmp_path):
    folder, _ = packed("Llama", "blockscale", "nvfp4")
    off = {"model_loader_extra_config": {"enable_weights_track": False}}
    found = served(engine(without("model.norm", folder, tmp_path), **off))
    assert [len(each) for each in found] == [NEW] * len(PROMPTS)


def test_adapters_are_added(packed, engine, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    from vllm.lora.request import LoRARequest

    import blockscale.integrations.peft
    import blockscale.integrations.transformers  # noqa: F401

    folder, expected = packed("Llama", "blockscale", "nvfp4")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"])
    adapted = get_peft_model(model, config).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 8
    tuned = offline(folder, PROMPTS, NEW, model=adapted)
    llm = engine(folder, enable_lora=True, max_lora_rank=8)
    request = LoRARequest("tuned", 1, str(tmp_path / "adapter"))
    assert served(llm, lora_request=request) == tuned
    assert served(llm) == expected
    assert tuned != expected
