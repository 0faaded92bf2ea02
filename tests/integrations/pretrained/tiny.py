"""Tiny random models, and how they are loaded and looked at."""

import importlib

import pytest
import torch

import blockscale as bs

transformers = pytest.importorskip("transformers", minversion="5.16")
integration = importlib.import_module("blockscale.integrations.transformers")
integration.unregister()  # other tests of this process meet transformers as it comes

BlockscaleConfig = integration.BlockscaleConfig
AutoModelForCausalLM = transformers.AutoModelForCausalLM

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


def tiny(family, **extra):
    config = getattr(transformers, f"{family}Config")(**COMMON | FAMILIES[family] | extra)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:  # biases too, which would be zeros
            torch.nn.init.normal_(parameter, std=0.1)
    return model


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
