"""A Llama of random weights on the CPU, whole: python -m bench.model_cpu --threads 2,16

    decode      one token after the other, after a prompt of 16 tokens
    prefill     the forward of one sequence, with the logits of its last token

Rivals: the model in --dtype; packed, by `quantize_`'s layers alone; packed and `optimize_`d, with
x as it is and with int8 x; and llama.cpp's Q4_0, where --llama-bench gives its program. They take
turns; a figure is the median of the rounds, and ratios are of the same round. A measurement during
which other machines or processes had more than --interference of the CPUs is thrown away and made
again. Weights are random: speed does not depend on their values.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import blockscale as bs
from bench.interference import DisturbedError, Quiet
from bench.machine import commit, describe_machine, versions
from bench.model_tables import ratio
from bench.random_gguf import Shape, write_gguf
from bench.random_weights import random_weight
from bench.results import store_whole
from blockscale.layouts import canonical

_PROMPT = 16
_LLAMA = "llama.cpp Q4_0"
Rates = dict[str, list[float]]  # tokens a second by work, round by round
Round = dict[str, dict[str, float]]  # tokens a second, by rival and work


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    shape = shape_of(arguments.layers, arguments.hidden, arguments.vocabulary)
    format = bs.format(arguments.format)
    rivals = _models(shape, format, arguments.dtype, arguments.only)
    console = Console(highlight=False)
    if arguments.llama_bench:
        arguments.gguf.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(arguments.gguf, shape)
    records: list[dict[str, Any]] = []
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        quiet = Quiet(arguments.interference, arguments.patience)
        rates = _race(rivals, threads, arguments, quiet)
        console.print(_table(f"{threads} threads", arguments.dtype, rates))
        records.append({"threads": threads, "rates": rates, **quiet.record()})
        if arguments.out:  # at once, so that an interruption loses one number of threads
            store_whole(_record(arguments, shape, records), arguments.out)
            console.print(f"stored: {arguments.out}")
    return 0


def shape_of(layers: int, hidden: int, vocabulary: int) -> Shape:
    """Of a Llama of this width: heads of 64, or less, and four of them to a head of keys."""
    heads = max(4, hidden // 64)
    return Shape(layers, hidden, 4 * hidden, heads, heads // 4, vocabulary)


def _models(shape: Shape, format: bs.Format, dtype: str, only: Sequence[str]) -> dict[str, Any]:
    """By name; those whose names end with one of `only`, and the baseline."""
    makers: dict[str, Callable[[], Any]] = {
        dtype: lambda: _plain(shape, dtype),
        f"{format}": lambda: _packed(_plain(shape, dtype), format),
        f"{format}, optimize_": lambda: optimized(shape, format, None, dtype),
        f"{format}, optimize_, int8": lambda: optimized(shape, format, "int8", dtype),
    }
    return {
        name: make()
        for name, make in makers.items()
        if name == dtype or not only or name.endswith(tuple(only))
    }


def optimized(
    shape: Shape, format: bs.Format, x_format: str | None, dtype: str = "bfloat16"
) -> Any:
    model = _packed(_plain(shape, dtype), format, head=True)
    print(bs.optimize_(model, x_format=x_format))
    return model


def _plain(shape: Shape, dtype: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    rotary = type(model.model.rotary_emb)(config)  # the only buffers that are not in the weights
    model = model.to_empty(device="cpu").eval().requires_grad_(requires_grad=False)
    model.model.rotary_emb = rotary
    for parameter in model.parameters():
        parameter.fill_(1.0 if parameter.dim() == 1 else 0.01)
    return model


def _packed(model: Any, format: bs.Format, *, head: bool = False) -> Any:
    """With weights of random bytes: quantising a billion numbers takes longer than the race."""
    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and (head or name != "lm_head")
    }
    for seed, (name, module) in enumerate(linears.items()):
        q = random_weight(format, tuple(module.weight.shape), canonical(format), "cpu", seed)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, bs.nn.Linear.from_qtensor(q))
    return model


def _race(
    rivals: dict[str, Any], threads: int, arguments: argparse.Namespace, quiet: Quiet
) -> dict[str, Rates]:
    for model in rivals.values():  # packs weights and wakes threads
        _decode(model, 2)
    rounds: list[Round] = []
    while len(rounds) < arguments.rounds:
        try:
            rounds.append(_round(rivals, threads, arguments, quiet))
        except DisturbedError as disturbed:
            if not rounds:
                raise
            print(f"{len(rounds)} rounds instead of {arguments.rounds}: {disturbed}")
            break
    return _by_rival(rounds)


def _round(
    rivals: dict[str, Any], threads: int, arguments: argparse.Namespace, quiet: Quiet
) -> Round:
    work: dict[str, Callable[[Any], float]] = {
        "decode": lambda model: _decode(model, arguments.tokens)
    }
    for size in arguments.prefill:
        work[f"prefill {size}"] = lambda model, tokens=size: _prefill(model, tokens)
    made: Round = {name: {} for name in rivals}
    for each, measure in work.items():
        for name, model in rivals.items():
            made[name][each] = quiet.measure(partial(measure, model))
        if arguments.llama_bench:
            found = quiet.measure(partial(_llama, arguments, threads, each))
            made.setdefault(_LLAMA, {})[each] = found
    return made


def _by_rival(rounds: Sequence[Round]) -> dict[str, Rates]:
    return {
        name: {each: [one[name][each] for one in rounds] for each in works}
        for name, works in rounds[0].items()
    }


@torch.inference_mode()
def _decode(model: Any, tokens: int) -> float:
    cache = model(input_ids=torch.arange(_PROMPT)[None], use_cache=True).past_key_values
    token = torch.tensor([[7]])
    model(input_ids=token, past_key_values=cache, use_cache=True)
    begin = time.perf_counter()
    for _ in range(tokens):
        model(input_ids=token, past_key_values=cache, use_cache=True)
    return tokens / (time.perf_counter() - begin)


@torch.inference_mode()
def _prefill(model: Any, tokens: int) -> float:
    """The second of two, as llama-bench times it."""
    begin = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        model(input_ids=torch.arange(tokens)[None], use_cache=True, logits_to_keep=1)
    return tokens / (time.perf_counter() - begin)


def _llama(arguments: argparse.Namespace, threads: int, work: str) -> float:
    prompt = 0 if work == "decode" else int(work.removeprefix("prefill "))
    tokens = 0 if prompt else arguments.tokens
    sizes = ["-p", str(prompt), "-n", str(tokens), "-t", str(threads)]
    command = [arguments.llama_bench, "-m", arguments.gguf, *sizes, "-r", "1", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments.llama_bench} failed: {done.stderr.strip()[-400:]}")
    (row,) = json.loads(done.stdout)
    return float(row["avg_ts"])


def _table(title: str, baseline: str, rates: dict[str, Rates]) -> Table:
    table = Table(title=f"{title}: tokens a second, and times {baseline}", box=SIMPLE)
    table.add_column("model")
    works = list(rates[baseline])
    for each in works:
        table.add_column(each, justify="right")
    for name, found in rates.items():
        cells = [
            f"{median(found[each]):.1f} ({ratio(found[each], rates[baseline][each]):.2f}x)"
            for each in works
        ]
        table.add_row(name, *cells)
    return table


def _record(arguments: argparse.Namespace, shape: Shape, records: list[Any]) -> dict[str, Any]:
    head, dirty = commit(arguments.commit)
    return {
        "what": "tokens a second of whole models on a CPU, round by round",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": head,
        "dirty": dirty,
        "machine": describe_machine(max(arguments.threads)),
        "versions": versions(("torch", "transformers")),
        "shape": shape._asdict(),
        "format": arguments.format,
        "dtype": arguments.dtype,
        "tokens": arguments.tokens,
        "runs": records,
    }


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=_numbers, default=[torch.get_num_threads()])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048, help="a multiple of 256")
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--format", default="kbit4")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--prefill", type=_numbers, default=[64, 512])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="ends of rivals' names, as int8")
    parser.add_argument(
        "--interference", type=float, default=0.05, help="the most that a measurement may have"
    )
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for quiet")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's program")
    parser.add_argument("--gguf", type=Path, default=Path("build/random_llama.gguf"))
    parser.add_argument("--commit", default="", help="of a copy of the tree without its history")
    parser.add_argument("--out", type=Path, help="such as bench/results/model/xeon.json")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
