"""Layers of Llama 3 8B on a GPU, packed beside bfloat16: python -m bench.model_gpu

    prefill     the forward of one sequence, with attention
    training    forward and backward of one sequence; weights are frozen, so x alone has gradients
    decode      one token of each sequence, captured in a CUDA graph; attention to that token alone

Weights are random: speed does not depend on their values. Rivals take turns; times are medians
between CUDA events. Each packed model is first compared with the same model of decoded weights, in
its results and in its gradients.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.machine import commit, describe_gpu, versions
from blockscale.models.decoded import decode_
from blockscale.nn import quantize_
from blockscale.runtime.cuda.timing import capture

_BASELINE = "bfloat16"
_FARTHEST = 0.05  # from the model of decoded weights, relative: bfloat16 rounds at every layer
_CHECKED = 64  # tokens
_WARM_UP = 3


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    console = Console(highlight=False)
    if arguments.device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    models = {_BASELINE: _random_model(arguments)}
    for name in arguments.formats.split(","):
        console.print(f"quantising to {name}")
        models[name] = copy.deepcopy(models[_BASELINE])
        quantize_(models[name], name, scale="absmax")
        for what, error in _errors(models[name], arguments).items():
            console.print(f"{what} of {name}: {error:.1e} from those of decoded weights")
            if not error < _FARTHEST:  # NaN too
                raise RuntimeError(f"{what} of {name} are wrong: {error:.1e} from decoded weights")
    times = {
        work: _take_turns({name: make(model) for name, model in models.items()}, arguments.rounds)
        for work, make in _work(arguments).items()
    }
    console.print(_table(times))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(_record(arguments, times), indent=1) + "\n")
        console.print(f"stored: {arguments.out}")
    return 0


def _random_model(arguments: argparse.Namespace) -> Any:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=arguments.hidden,
        intermediate_size=arguments.hidden * 7 // 2,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 128 or 1,
        num_key_value_heads=arguments.hidden // 512 or 1,
        vocab_size=128,  # tokens come as embeddings
    )
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = LlamaModel(config)
    return model.bfloat16().eval().requires_grad_(requires_grad=False)


def _rows(model: Any, batch: int, tokens: int) -> Tensor:  # [batch, tokens, hidden]
    shape = batch, tokens, model.config.hidden_size
    return torch.randn(shape, device=model.device, dtype=torch.bfloat16)


def _errors(model: Any, arguments: argparse.Namespace) -> dict[str, float]:
    """Relative: of results, and of gradients with respect to x."""
    twin = copy.deepcopy(model)
    decode_(twin)
    x = _rows(model, 1, min(_CHECKED, *arguments.prefill))
    found = []
    for each in (model, twin):
        rows = x.clone().requires_grad_()
        y = each(inputs_embeds=rows, use_cache=False).last_hidden_state
        y.backward(x)
        found.append((y.detach().double(), rows.grad.double()))
    pairs = zip(("results", "gradients"), *found, strict=True)
    return {what: ((a - b).norm() / b.norm()).item() for what, a, b in pairs}


Work = Callable[[Any], Callable[[], None]]


def _work(arguments: argparse.Namespace) -> dict[str, Work]:
    """What is timed: from a model to a call."""
    found: dict[str, Work] = {}
    for tokens in arguments.prefill:
        found[f"prefill of {tokens} tokens"] = lambda model, n=tokens: _forward(model, 1, n)
    tokens = arguments.training
    found[f"forward and backward of {tokens} tokens"] = lambda model: _backward(model, tokens)
    for batch in arguments.decode:
        found[f"decode of {batch} sequences"] = lambda model, n=batch: _captured(model, n)
    return found


def _forward(model: Any, batch: int, tokens: int) -> Callable[[], None]:
    x = _rows(model, batch, tokens)

    def call() -> None:
        with torch.no_grad():
            model(inputs_embeds=x, use_cache=False)

    return call


def _backward(model: Any, tokens: int) -> Callable[[], None]:
    x = _rows(model, 1, tokens).requires_grad_()
    above = _rows(model, 1, tokens)

    def call() -> None:
        x.grad = None
        model(inputs_embeds=x, use_cache=False).last_hidden_state.backward(above)

    return call


def _captured(model: Any, batch: int) -> Callable[[], None]:
    call = _forward(model, batch, 1)
    if model.device.type != "cuda":
        return call
    for _ in range(_WARM_UP):
        call()
    torch.cuda.synchronize()
    graph = capture([call])
    return lambda: graph.replay()


def _take_turns(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Milliseconds of each rival: the median of rounds."""
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(_milliseconds(call))
    return {name: median(each) for name, each in samples.items()}


def _milliseconds(call: Callable[[], None]) -> float:
    if not torch.cuda.is_initialized():
        begin = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - begin)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    events[0].record()
    call()
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1])


def _record(arguments: argparse.Namespace, times: dict[str, dict[str, float]]) -> dict[str, Any]:
    head, dirty = commit(arguments.commit)
    return {
        "commit": head,
        "dirty": dirty,
        "machine": describe_gpu() if arguments.device == "cuda" else {},
        "versions": versions(("torch", "transformers")),
        "layers": arguments.layers,
        "hidden": arguments.hidden,
        "milliseconds": times,
    }


def _table(times: dict[str, dict[str, float]]) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("ms")
    names = list(next(iter(times.values())))
    for name in names:
        table.add_column(name, justify="right")
    for work, found in times.items():
        ratios = (f"{found[name]:.3f} ({found[_BASELINE] / found[name]:.2f}x)" for name in names)
        table.add_row(work, *ratios)
    return table


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.model_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--formats", default="nvfp4,kbit4", help="default: %(default)s")
    parser.add_argument("--layers", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--hidden", type=int, default=4096, help="default: %(default)s")
    parser.add_argument("--prefill", type=_numbers, default=[512, 2048], help="tokens, with commas")
    parser.add_argument("--training", type=int, default=512, help="tokens")
    parser.add_argument("--decode", type=_numbers, default=[1, 16, 64], help="sequences")
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--out", type=Path, help="JSON file to store")
    return parser


if __name__ == "__main__":
    sys.exit(main())
