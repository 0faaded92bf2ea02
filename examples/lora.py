"""Train a LoRA adapter on a quantised model: weights stay packed, the adapter learns a sentence.

    python examples/lora.py [--model FOLDER] [--format nvfp4] [--steps 60] [--out FOLDER]

Without a model, a small one of random weights: it runs on a laptop in seconds and shows the steps.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from torch import Tensor

import blockscale as bs
import blockscale.integrations.peft  # peft knows packed layers from here on
from blockscale.models import load_model, load_tokenizer

SENTENCE = "Blocks of sixteen weights share a scale, and that is enough."


def small_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    size = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 256}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**size, **heads))


def tokens_of(folder: Path | None) -> Tensor:  # [1, tokens]
    """The sentence; of the small model, a token for each byte."""
    if folder is None:
        return torch.tensor([list(SENTENCE.encode())])
    ids: Tensor = load_tokenizer(folder)(SENTENCE, return_tensors="pt").input_ids
    return ids


def train(model: Any, ids: Tensor, steps: int) -> list[float]:
    """The losses. Only adapters have gradients, and so only they have an optimiser's state."""
    trained = [each for each in model.parameters() if each.requires_grad]
    optimiser, losses = torch.optim.AdamW(trained, lr=1e-2), []
    model.train()
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses


def base(folder: Path | None, format: str, device: str) -> Any:
    model = small_model() if folder is None else load_model(folder)
    model = model.to(device)
    if device == "cuda":
        model = model.bfloat16()
    bs.quantize_(model, format)
    return model


def main(argv: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder of transformers; default: random")
    parser.add_argument("--format", default="nvfp4")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("build/lora"))
    arguments = parser.parse_args(argv)
    console = Console(highlight=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ids = tokens_of(arguments.model).to(device)

    model = base(arguments.model, arguments.format, device)
    model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    model.print_trainable_parameters()
    losses = train(model, ids, arguments.steps)
    if losses:
        console.print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps")
    else:
        console.print("no steps: the adapter is as it began, and adds nothing")

    model.save_pretrained(arguments.out)
    again = PeftModel.from_pretrained(
        base(arguments.model, arguments.format, device), arguments.out
    ).eval()
    with torch.no_grad():
        same = torch.equal(again(ids).logits, model(ids).logits)
    console.print(f"stored: {arguments.out}; reloaded, it gives the same bits: {same}")
    return losses


if __name__ == "__main__":
    main()
