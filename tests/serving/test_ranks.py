"""Two ranks of vLLM give the tokens of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.record import PATIENCE

pytest.importorskip("vllm", reason="vLLM is in an environment of its own: make serving")

TENSOR = {"tensor_parallel_size": 2}
EXPERT = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
# With enforce_eager a run on CPUs ended in vLLM: its runner had no tensors to pass between stages.
TRACED = {"enforce_eager": False, "compilation_config": {"backend": "eager"}}
PIPELINE = {"pipeline_parallel_size": 2, **TRACED}


def generate(folder, options):
    """One rank a core: both would else run on the first."""
    cores = sorted(os.sched_getaffinity(0))
    settings = {
        "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "serving.generate", str(folder), json.dumps(options)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=600 * PATIENCE,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
    assert lines, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(lines[0].removeprefix("TOKENS "))


@pytest.mark.parametrize(
    ("family", "dialect", "format", "options"),
    [
        ("Llama", "blockscale", "nvfp4", TENSOR),
        ("Phi3", "compressed-tensors", "nvfp4", TENSOR),
        ("Qwen3Moe", "blockscale", "nvfp4", TENSOR),
        ("GptOss", "gpt-oss", "mxfp4", TENSOR),
        ("Qwen3Moe", "modelopt", "mxfp8", EXPERT),
        ("Llama", "modelopt", "nvfp4", PIPELINE),
    ],
)
def test_two_ranks_give_the_tokens_of_one(packed, family, dialect, format, options):
    folder, expected = packed(family, dialect, format)
    assert generate(folder, options) == expected
