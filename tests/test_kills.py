"""Killed by SIGKILL between two steps and run again, writers end with the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hanging
from checkpoint.models import llama, write_model

TESTS = Path(__file__).parent

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def kills_of(script, *arguments):
    """How often the children of a script were killed; the script checks what they left."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, TESTS / script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=hanging.SECONDS,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return int(result.stdout)


@pytest.mark.fault(
    "quantising is killed (SIGKILL) up to three times, at random steps of 20 runs",
    outcome="run again, it ends with the same bytes and leaves nothing else",
)
def test_quantising_survives_kills_at_random_steps(tmp_path):
    torch.manual_seed(1)
    source = write_model(tmp_path / "source", llama(1), shards=2)
    (tmp_path / "runs").mkdir()
    assert kills_of("checkpoint/killed_quantising.py", source, tmp_path / "runs", 20) > 20


@pytest.mark.fault(
    "tuning is killed (SIGKILL) at every step of keeping a result",
    outcome="its file is the old or the new one, whole; kept again, it has the same bytes",
)
def test_tuning_survives_kills_at_every_step(tmp_path):
    assert kills_of("runtime/killed_tuning.py", tmp_path / "cache") > 4
