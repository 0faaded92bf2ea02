"""Tiny random models on the disk, packed in one dialect or another."""

from pathlib import Path

import torch

import blockscale as bs
from blockscale.checkpoint.convert import run_plan
from blockscale.checkpoint.plan import Settings, plan_conversion
from blockscale.nn.packed import known_x_format

# Wide enough for attention on CPUs, and for k to be cut in two between blocks.
COMMON = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
EXTRA = {
    "Llama": {},
    "Qwen2": {},  # with biases
    "Phi3": {},  # qkv and gate_up are fused in its files
    "Qwen3Moe": {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128},
}
NEW = 8  # tokens a prompt
PROMPTS = [[1, 2, 3, 4, 5], list(range(7, 40)), [200], [9] * 12]


def make_plain(family: str, folder: Path, seed: int = 0, **other) -> Path:
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**(COMMON | EXTRA[family] | other))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return folder


def pack(plain: Path, folder: Path, dialect: str, format: str) -> Path:
    run_plan(plan_conversion(plain, Settings(bs.format(format), dialect=dialect)), folder)
    return folder


def load_offline(checkpoint: Path):
    from transformers import AutoModelForCausalLM

    import blockscale.integrations.transformers  # noqa: F401

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def offline(checkpoint, prompts, new, *, x_format=None, model=None) -> list[list[int]]:
    """Greedy tokens of transformers with this library's layers."""
    if model is None:
        model = load_offline(checkpoint)
    for layer in model.modules():
        if isinstance(layer, bs.nn.Linear):
            layer.x_format = known_x_format(x_format)
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False)
        found.append(out[0, len(prompt) :].tolist())
    return found


def served(
    engine, prompts: list[list[int]] = PROMPTS, new: int = NEW, **options
) -> list[list[int]]:
    """Greedy tokens of an engine of vLLM."""
    from vllm import SamplingParams

    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    params = SamplingParams(temperature=0, max_tokens=new, detokenize=False)
    results = engine.generate(given, params, use_tqdm=False, **options)
    return [list(result.outputs[0].token_ids) for result in results]


def add_tokenizer(folder: Path) -> Path:
    """Token 7 is the word "t7": for servers, which do not start without one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{i}": i for i in range(COMMON["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder
