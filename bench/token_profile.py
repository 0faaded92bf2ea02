"""Where the time of a decoded token goes: python -m bench.token_profile --threads 1,2

A random Llama, packed and `optimize_`d with int8 x, decodes some tokens; the native calls are timed
apart from what surrounds them. The products of a token are then made one by one, over all layers,
so that every weight comes out of memory as it does in decoding: their sum is near what the one call
of all layers takes, and may lie above it, since each begins with cold caches. A model too small to
have work worth mentioning, of as many layers, shows what jobs, norms and attention cost by
themselves.

On one thread times are CPU time, which other processes do not lengthen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import blockscale as bs
from bench.model_cpu import optimized, shape_of
from blockscale.runtime.native_library import Native

_PROMPT = 16
_TINY = 64  # hidden
Parts = dict[str, float]  # milliseconds a token


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    shape = shape_of(arguments.layers, arguments.hidden, arguments.vocabulary)
    format = bs.format(arguments.format)
    model = optimized(shape, format, "int8")
    tiny = optimized(shape_of(arguments.layers, _TINY, _TINY), format, "int8")
    found = {}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        found[threads] = _profile(model, tiny, arguments.tokens, _clock(threads))
    Console(highlight=False).print(_table(found))
    return 0


def _clock(threads: int) -> Callable[[], float]:
    return time.thread_time if threads == 1 else time.perf_counter


def _profile(model: Any, tiny: Any, tokens: int, clock: Callable[[], float]) -> Parts:
    token, native = _decode(model, tokens, clock)
    _, handing = _decode(tiny, tokens, clock)
    layers, head = native["bs_decode"], native.get("bs_int8", 0.0)
    return {
        "the token": token,
        "all layers": layers,
        "head": head,
        "Python and torch": token - layers - head,
        **{f"{name}, alone": each for name, each in _products(model, clock).items()},
        "layers of a tiny model": handing["bs_decode"],
    }


@torch.inference_mode()
def _decode(model: Any, tokens: int, clock: Callable[[], float]) -> tuple[float, Parts]:
    """Of a token, and of the native functions in it: medians."""
    cache = model(input_ids=torch.arange(_PROMPT)[None], use_cache=True).past_key_values
    token = torch.tensor([[7]])
    whole, native = [], []
    for _ in range(tokens + 1):
        with _timed_calls(clock) as calls:
            begin = clock()
            model(input_ids=token, past_key_values=cache, use_cache=True)
            whole.append(clock() - begin)
        native.append(calls)
    names = native[1].keys()  # the first token makes room in the cache
    times = {name: median(sum(each[name]) for each in native[1:]) for name in names}
    return 1e3 * median(whole[1:]), {name: 1e3 * each for name, each in times.items()}


@contextmanager
def _timed_calls(clock: Callable[[], float]) -> Iterator[dict[str, list[float]]]:
    """Seconds of each call of the native library, by function."""
    calls: dict[str, list[float]] = {}
    plain = Native.call

    def timed(native: Native, function: str, arguments: Any) -> None:
        begin = clock()
        plain(native, function, arguments)
        calls.setdefault(function, []).append(clock() - begin)

    with patch.object(Native, "call", timed):
        yield calls


@torch.inference_mode()
def _products(model: Any, clock: Callable[[], float], rounds: int = 5) -> Parts:
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        total: Parts = {}
        for layer in model.model.layers:
            for name, work in _work(layer).items():
                with _timed_calls(clock) as calls:
                    work()
                total[name] = total.get(name, 0.0) + 1e3 * sum(map(sum, calls.values()))
        for name, each in total.items():
            found.setdefault(name, []).append(each)
    return {name: median(each) for name, each in found.items()}


def _work(layer: Any) -> dict[str, Callable[[], Any]]:
    attention, mlp = layer.self_attn, layer.mlp
    x = torch.ones(1, attention.q_proj.in_features)
    wide = torch.ones(1, mlp.down_proj.in_features)
    gate, up = (linear.weight.prepare() for linear in (mlp.gate_proj, mlp.up_proj))
    return {
        "q, k, v": lambda: [attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)],
        "o": lambda: attention.o_proj(x),
        "gate, up": lambda: bs.gated_matmul(x, gate, up, activation="silu", x_format="int8"),
        "down": lambda: mlp.down_proj(wide),
    }


def _table(found: dict[int, Parts]) -> Table:
    table = Table(title="milliseconds of a token", box=SIMPLE)
    table.add_column("part")
    for threads in found:
        table.add_column(f"{threads} threads" if threads > 1 else "1 thread", justify="right")
    for name in next(iter(found.values())):
        table.add_row(name, *(f"{parts[name]:.2f}" for parts in found.values()))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=lambda text: [*map(int, text.split(","))], default=[1, 2])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--format", default="kbit4")
    parser.add_argument("--tokens", type=int, default=32)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
