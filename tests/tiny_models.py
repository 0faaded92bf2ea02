"""Random models of transformers classes: 2 layers, hidden 64, float32."""

import torch

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


def make_tiny(name):
    import transformers

    config = getattr(transformers, f"{name}Config")(**COMMON, **EXTRA[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    model.config._experts_implementation = "eager"  # the one that takes float64
    for key, parameter in model.named_parameters():
        if "norm" not in key:  # biases too, which would be zeros
            torch.nn.init.normal_(parameter, std=0.1)
    return model
