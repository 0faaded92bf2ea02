"""Layouts of another machine, tiny models, and a compiler that starts afresh."""

import pytest
import torch

from blockscale import ops
from blockscale.layouts import Layout, canonical


@pytest.fixture(params=["blocked", "lanes"])
def foreign(request, monkeypatch):
    """As on a machine whose kernels read another layout than the canonical one."""

    def prepared_layout(format, target):
        codes = "lanes" if request.param == "lanes" else canonical(format).codes
        return Layout(codes, request.param)

    monkeypatch.setattr(ops, "prepared_layout", prepared_layout)
    return prepared_layout


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
EXTRA = {
    "Llama": {},
    "Qwen3": {},
    "Qwen3Moe": {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}


@pytest.fixture(params=EXTRA)
def tiny_model(request):
    """A random model of a transformers class: 2 layers, hidden 64, float32."""
    transformers = pytest.importorskip("transformers")
    name = request.param
    config = getattr(transformers, f"{name}Config")(**COMMON, **EXTRA[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    model.config._experts_implementation = "eager"  # the one that takes float64
    for key, parameter in model.named_parameters():
        if "norm" not in key:  # biases too, which would be zeros
            torch.nn.init.normal_(parameter, std=0.1)
    return model
