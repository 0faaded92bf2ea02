"""Tiny random models of many transformers classes, in folders of 16-bit weights."""

import torch

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
DEEPSEEK = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "num_key_value_heads": 4,
}
TIED = {"tie_word_embeddings": True}
FAMILIES = {
    "Llama": {},
    "Llama, tied": TIED,
    "Mistral": {},
    "Qwen2": TIED,
    "Qwen3": TIED,
    "SmolLM3": TIED,
    "Gemma": TIED,
    "Gemma2": TIED,
    "Gemma3": TIED,
    "Granite": TIED,
    "Olmo2": {},
    "Cohere": TIED,
    "StableLm": {},
    "Starcoder2": TIED,
    "Phi": {},
    "Phi3": {},
    "OPT": {"ffn_dim": 128, "word_embed_proj_dim": 64, **TIED},
    "GPTNeoX": {},
    "GPTJ": {"rotary_dim": 8},
    "Bloom": TIED,
    "Mixtral": LOCAL,
    "GraniteMoe": {**LOCAL, **TIED},
    "GptOss": {**LOCAL, "sliding_window": 8},
    "Llama4": {**LOCAL, "intermediate_size_mlp": 64, "num_experts_per_tok": 1},
    "Qwen3Moe": EXPERTS,
    "Olmoe": EXPERTS,
    "DeepseekV3": DEEPSEEK,
}


def write_family(name, folder):
    """A folder as `save_pretrained` writes it, in bfloat16, without a tokenizer."""
    import transformers

    family = name.partition(",")[0]
    stem = f"{family}Text" if family in ("Gemma3", "Llama4") else family
    config = getattr(transformers, f"{stem}Config")(**{**SIZES, **FAMILIES[name]})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for key, parameter in model.named_parameters():
        if "norm" not in key:  # biases too, which would be zeros
            torch.nn.init.normal_(parameter, std=0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
