"""Decoding speed of a whole model, one token after the other: python -m bench.decode

Every step reads all weights once, so this is where quantised ones pay. The model has random
weights: speed does not depend on their values. Rivals take turns, some tokens each, in a new order
each round; what is reported is the median, and ratios are taken within rounds.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.machine import commit, describe_machine, versions
from bench.timing import ratio, spread, wait_for_quiet
from blockscale.models import bits_per_weight, emulates_bfloat16, load_model, model_bytes
from blockscale.models.generate import next_token
from blockscale.nn import quantize_
from blockscale.runtime import load_native

# About a billion weights, in the proportions of Llama 3.2 1B with a smaller vocabulary.
_BILLION = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32_000,
    "tie_word_embeddings": True,
}
# SmolLM2-135M's.
_SMALL = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49_152,
    "tie_word_embeddings": True,
}
_SIZES = {"1b": _BILLION, "135m": _SMALL}
_INT8 = "+int8"  # after a format: activations in 8 bits
_PROMPT = 16  # tokens that are in the cache before the clock starts


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    console = Console(highlight=False)
    original = (
        load_model(arguments.model, torch.float32)
        if arguments.model
        else _random_model(_SIZES[arguments.size])
    )
    rivals = _rivals(original, arguments.formats.split(","), console)
    samples = _take_turns(rivals, arguments.rounds, arguments.tokens)
    run = _record(arguments, rivals, samples)
    console.print(_table(run))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(run, indent=1) + "\n")
        console.print(f"stored: {arguments.out}")
    return 0


def _random_model(size: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**size)).eval()


def _rivals(original: Any, formats: Sequence[str], console: Console) -> dict[str, Any]:
    """The model in torch's dtypes and in each format; quantised copies keep float32 heads."""
    rivals = {"float32": original}
    if emulates_bfloat16("cpu"):
        console.print("bfloat16 is emulated by this CPU: float32 is the baseline")
    else:
        rivals = {"bfloat16": copy.deepcopy(original).bfloat16(), **rivals}
    base = next(iter(rivals.values()))
    for name in formats:
        console.print(f"quantising to {name}")
        twin = copy.deepcopy(base)
        x_format = "int8" if name.endswith(_INT8) else None
        # Searched scales take longer to find and are read no faster.
        quantize_(twin, name.removesuffix(_INT8), scale="absmax", x_format=x_format)
        rivals[name] = twin
    return rivals


def _take_turns(rivals: dict[str, Any], rounds: int, tokens: int) -> dict[str, list[float]]:
    """Seconds per token of each rival, one sample a round."""
    order = random.Random(0)  # noqa: S311
    turns = list(rivals)
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    for model in rivals.values():
        _decode(model, 2)  # packs weights, wakes threads
    for _ in range(rounds):
        order.shuffle(turns)
        for name in turns:
            wait_for_quiet()
            samples[name].append(_decode(rivals[name], tokens))
    return samples


def _decode(model: Any, tokens: int) -> float:
    """Seconds per token, after a prompt."""
    prompt = torch.arange(_PROMPT)[None] % model.config.vocab_size
    token, cache = next_token(model, prompt, None)
    begin = time.perf_counter()
    for _ in range(tokens):
        token, cache = next_token(model, torch.tensor([[token]]), cache)
    return (time.perf_counter() - begin) / tokens


def _record(
    arguments: argparse.Namespace, rivals: dict[str, Any], samples: dict[str, list[float]]
) -> dict[str, Any]:
    head, dirty = commit(arguments.commit)
    loaded = load_native()
    baseline = next(iter(rivals))
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": head,
        "dirty": dirty,
        "machine": describe_machine(arguments.threads),
        "versions": versions(("torch", "transformers")),
        "native": f"none ({loaded})" if isinstance(loaded, str) else loaded.isa,
        "model": str(arguments.model) if arguments.model else _SIZES[arguments.size],
        "weights": sum(p.numel() for p in next(iter(rivals.values())).parameters()),
        "baseline": baseline,
        "rivals": {
            name: {
                "bytes": model_bytes(model),
                "bits_per_weight": bits_per_weight(model),
                "tokens_per_second": asdict(spread([1 / s for s in samples[name]])),
                "ratio": asdict(ratio(samples[baseline], samples[name])),
            }
            for name, model in rivals.items()
        },
    }


def _table(run: dict[str, Any]) -> Table:
    machine = run["machine"]
    table = Table(
        title=f"{run['weights'] / 1e6:,.0f}M weights, {machine['cpu']}, "
        f"{machine['threads']} threads, {run['native']}",
        title_justify="left",
        box=SIMPLE,
    )
    table.add_column("rival")
    for heading in ("bits/weight", "MB", "tokens/s", f"times {run['baseline']}", "quartiles"):
        table.add_column(heading, justify="right")
    for name, rival in run["rivals"].items():
        times = rival["ratio"]
        table.add_row(
            name,
            f"{rival['bits_per_weight']:.2f}",
            f"{rival['bytes'] / 1e6:,.0f}",
            f"{rival['tokens_per_second']['median']:.2f}",
            f"{times['median']:.2f}",
            f"{times['q1']:.2f} .. {times['q3']:.2f}",
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="a folder; default: random weights")
    parser.add_argument(
        "--size", choices=sorted(_SIZES), default="1b", help="of random weights. default: 1b"
    )
    parser.add_argument(
        "--formats",
        default="nvfp4,kbit4,kbit4+int8,kbit3,mxfp8",
        help="with commas; '+int8' after one: activations in 8 bits. default: %(default)s",
    )
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=16, help="a round. default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s"
    )
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--out", type=Path, help="JSON file to store")
    return parser


if __name__ == "__main__":
    sys.exit(main())
