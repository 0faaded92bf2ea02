"""Tokens a second of vLLM with packed weights, beside vLLM's own plain weights in the same run.

The two take turns, so that a machine which slows down slows down both; only their ratio is kept.
Once with x as it is, and once rounded to int8, which has to be asked for.

    OMP_NUM_THREADS=1 python -m serving.throughput --out bench/results/serving/throughput.json
    OMP_NUM_THREADS=2 GOMP_CPU_AFFINITY="0 1" python -m serving.throughput --out ...

The engines run in this process, so that they can take turns. vLLM gives each thread of a worker
process a core of its own, by the same variable; here nobody would. Threads that may choose their
cores can end up on one, where each waits for the other to spin to the end of its time slice.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from serving.record import written
from serving.served_models import NEW as TOKENS
from serving.served_models import PROMPTS, make_plain, offline, pack, served

WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6, "head_dim": 128}
WIDE |= {"num_attention_heads": 8, "num_key_value_heads": 4}
NEW, ROUNDS = 24, 7
X_FORMAT = "BLOCKSCALE_X_FORMAT"


def start(folder: Path, dtype: str):
    from vllm import LLM

    return LLM(
        model=str(folder),
        dtype=dtype,
        skip_tokenizer_init=True,
        max_model_len=256,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
    )


def rate(engine, sequences: int) -> float:
    """Tokens a second of `sequences` requests at once."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [1 + i] * 8} for i in range(sequences)]
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    engine.generate(prompts, params, use_tqdm=False)
    return sequences * NEW / (time.perf_counter() - begin)


def ratios(packed, own, sequences: int) -> dict[str, float]:
    """Of the two, which take turns: the median of some rounds, and how far they lie apart. The
    first round is not counted."""
    pairs = [(rate(packed, sequences), rate(own, sequences)) for _ in range(ROUNDS + 1)]
    found = sorted(ours / theirs for ours, theirs in pairs[1:])
    named = {"median": statistics.median(found), "lowest": found[0], "highest": found[-1]}
    return {name: round(value, 2) for name, value in named.items()}


def measured(folder: Path, own, dtype: str, x_format: str) -> dict[str, dict[str, float]]:
    """No time of an engine that gives other tokens than offline generation, which is in float32."""
    os.environ[X_FORMAT] = x_format
    packed = start(folder, dtype)
    wanted = offline(folder, PROMPTS, TOKENS, x_format=x_format or None)
    if dtype == "float32" and served(packed) != wanted:
        raise RuntimeError(f"tokens with x in {x_format or dtype} are not those of the model")
    return {f"{n} at once": ratios(packed, own, n) for n in (1, 8)}


def are_bound() -> bool:
    """Whether the threads of OpenMP, of which this is the first, have a core each."""
    torch.ones(2**16).add_(1)  # a first region, which binds them
    return len(os.sched_getaffinity(0)) == 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dtype", default="float32", help="bfloat16 where the CPU has it")
    parser.add_argument("--format", default="nvfp4")
    options = parser.parse_args()
    if torch.get_num_threads() > 1 and not are_bound():
        parser.error(
            'set GOMP_CPU_AFFINITY="0 1", a core for each thread, as vLLM does for servers'
        )
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    speeds = {}
    with tempfile.TemporaryDirectory() as scratch:
        plain = make_plain("Llama", Path(scratch) / "plain", **WIDE)
        folder = pack(plain, Path(scratch) / "packed", "blockscale", options.format)
        own = start(plain, options.dtype)
        for x_format in ("", "int8"):
            speeds[x_format or options.dtype] = measured(folder, own, options.dtype, x_format)
            gc.collect()
    model = f"random Llama, hidden {WIDE['hidden_size']}, {WIDE['num_hidden_layers']} layers"
    found = {"model": model, "format": options.format, "dtype": options.dtype, "rounds": ROUNDS}
    found |= {"threads": torch.get_num_threads(), "speed_beside_plain_by_x": speeds}
    print(json.dumps(found, indent=1))
    if options.out is not None:
        written(options.out, found)


if __name__ == "__main__":
    main()
