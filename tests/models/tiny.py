"""A model of two layers with a tokenizer, in a folder as transformers saves it."""

import torch

WORDS = ["low", "bit", "weights", "make", "small", "models", "fast", "and", "so", "on"]


def write_tiny(folder, *, tokenizer=True, template=None, **config):
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": 16,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": None,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **config})).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:  # far enough from uniform for predictions to differ
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    if tokenizer:
        tokenizer = make_tokenizer()
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(["<unk>", "<end>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")


def text(tokens, seed=0):
    """Words at random."""
    chosen = torch.randint(len(WORDS), (tokens,), generator=torch.Generator().manual_seed(seed))
    return " ".join(WORDS[index] for index in chosen)
