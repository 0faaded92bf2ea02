"""Small decoders of transformers, and what tests of `optimize_` ask them."""

import pytest
import torch

import blockscale as bs

transformers = pytest.importorskip("transformers")


def tiny(kind="Llama", dtype=torch.float32, format=bs.KBIT4, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=96, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
        num_key_value_heads=2, tie_word_embeddings=True,
        **{"num_attention_heads": 4, "max_position_embeddings": 512, **options},
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).eval()
    bs.quantize_(model, format, importance=None, progress=False)
    return model


def logits(model, tokens, steps=6):
    """After a prompt, token by token."""
    with torch.inference_mode():
        out = model(input_ids=tokens[:, :5], use_cache=True)
        found = [out.logits[:, -1]]
        for i in range(5, 5 + steps):
            out = model(input_ids=tokens[:, i : i + 1], past_key_values=out.past_key_values)
            found.append(out.logits[:, -1])
    return torch.cat(found)


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


TOKENS = torch.arange(1, 400)[None] % 96


def count_calls(model):
    """How many tokens pass all layers at once, call by call."""
    taken = []
    fast = model.model.__dict__["forward"]
    plain = fast._decode

    def counted(call, asked):
        taken.append(asked["input_ids"].shape[1])
        return plain(call, asked)

    fast._decode = counted
    return taken


def prompted(model, *lengths, **options):
    """Logits of tokens that come in pieces of these lengths, and the cache that they leave."""
    found, cache, begin = [], None, 0
    with torch.inference_mode():
        for length in lengths:
            piece = TOKENS[:, begin : begin + length]
            out = model(input_ids=piece, past_key_values=cache, use_cache=True, **options)
            found.append(out.logits[0])
            cache, begin = out.past_key_values, begin + length
    return torch.cat(found), cache
