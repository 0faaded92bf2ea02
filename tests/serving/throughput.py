"""Tokens a second of vLLM with packed weights, beside vLLM's own plain weights in the same run.

The two take turns, so that a machine which slows down slows down both; only their ratio is kept.

    python -m serving.throughput --out bench/results/serving/throughput.json
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

from serving.record import written
from serving.served_models import make_plain, pack

WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6, "head_dim": 128}
WIDE |= {"num_attention_heads": 8, "num_key_value_heads": 4}
NEW, ROUNDS = 24, 3


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dtype", default="float32", help="bfloat16 where the CPU has it")
    parser.add_argument("--formats", default="nvfp4,mxfp8")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    ratios = {}
    with tempfile.TemporaryDirectory() as scratch:
        plain = make_plain("Llama", Path(scratch) / "plain", **WIDE)
        own = start(plain, options.dtype)
        for format in options.formats.split(","):
            folder = pack(plain, Path(scratch) / format, "blockscale", format)
            packed = start(folder, options.dtype)
            for sequences in (1, 8):
                pairs = [(rate(packed, sequences), rate(own, sequences)) for _ in range(ROUNDS + 1)]
                found = statistics.median(ours / theirs for ours, theirs in pairs[1:])
                ratios[f"{format}, {sequences} at once"] = round(found, 2)
            del packed
            gc.collect()
    model = f"random Llama, hidden {WIDE['hidden_size']}, {WIDE['num_hidden_layers']} layers"
    found = {"model": model, "dtype": options.dtype, "speed_beside_plain": ratios}
    print(json.dumps(found, indent=1))
    if options.out is not None:
        written(options.out, found)


if __name__ == "__main__":
    main()
