"""Where a step of an engine goes: the linear layers, and all the rest, which is vLLM's.

In CPU time of the thread that runs the model, so that other processes do not count; with more than
one thread it would leave the others out.

    OMP_NUM_THREADS=1 python -m serving.decode_step --out bench/results/serving/decode_step.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from serving.record import written
from serving.served_models import make_plain, pack
from serving.throughput import NEW, WIDE, X_FORMAT, start

REQUESTS, PROMPT, ROUNDS = 8, 8, 5


class LinearTime:
    """Seconds that the linear layers of all engines have taken."""

    def __init__(self) -> None:
        from vllm.model_executor.layers.linear import UnquantizedLinearMethod

        from blockscale.integrations.vllm.linear import BlockscaleLinearMethod

        self.seconds = 0.0
        for method in (UnquantizedLinearMethod, BlockscaleLinearMethod):
            self._watch(method)

    def _watch(self, method) -> None:
        apply = method.apply

        def timed(*arguments, **named):
            begin = time.thread_time()
            result = apply(*arguments, **named)
            self.seconds += time.thread_time() - begin
            return result

        method.apply = timed


def steps(llm, linear: LinearTime) -> list[tuple[float, float]]:
    """Seconds of each step, and of its linear layers: the first one is that of the prompts."""
    from vllm import SamplingParams

    engine, found = llm.llm_engine, []
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
    for i in range(REQUESTS):
        prompt = {"prompt_token_ids": [1 + i] * PROMPT}
        engine.add_request(f"{time.monotonic_ns()}-{i}", prompt, params)
    while engine.has_unfinished_requests():
        linear.seconds, begin = 0.0, time.thread_time()
        engine.step()
        found.append((time.thread_time() - begin, linear.seconds))
    return found


def milliseconds(pairs: list[tuple[float, float]]) -> dict[str, float]:
    names = ("step", "linear")
    return {n: round(1e3 * statistics.median(p[i] for p in pairs), 1) for i, n in enumerate(names)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--format", default="nvfp4")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if torch.get_num_threads() != 1:
        parser.error("set OMP_NUM_THREADS=1: the time of one thread is measured")
    linear = LinearTime()
    with tempfile.TemporaryDirectory() as scratch:
        plain = make_plain("Llama", Path(scratch) / "plain", **WIDE)
        packed = pack(plain, Path(scratch) / "packed", "blockscale", options.format)
        engines = {"plain float32": start(plain, "float32")}
        for x_format in ("", "int8"):
            os.environ[X_FORMAT] = x_format
            name = f"{options.format.upper()}, x in {x_format or 'float32'}"
            engines[name] = start(packed, "float32")
        runs = {name: [] for name in engines}
        for _ in range(ROUNDS + 1):  # they take turns; the first turns are not counted
            for name, engine in engines.items():
                runs[name].append(steps(engine, linear))
    found = {
        name: {
            "prompts": milliseconds([run[0] for run in taken[1:]]),
            "decode": milliseconds([step for run in taken[1:] for step in run[1:]]),
        }
        for name, taken in runs.items()
    }
    model = f"random Llama, hidden {WIDE['hidden_size']}, {WIDE['num_hidden_layers']} layers"
    shape = {"requests": REQUESTS, "prompt_tokens": REQUESTS * PROMPT, "rounds": ROUNDS}
    told = {"model": model, **shape, "cpu_ms": found}
    print(json.dumps(told, indent=1))
    if options.out is not None:
        written(options.out, told)


if __name__ == "__main__":
    main()
