"""Tests against a real vLLM, in an environment of its own: `make serving`.

SERVING_RECORD=FILE keeps what ran, with its date and versions.
"""

import gc
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from serving.record import earlier, written
from serving.served_models import NEW, PROMPTS, make_plain, offline, pack

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one rank runs in this process
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_CONFIGURE_LOGGING": "0",  # pytest listens
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
if find_spec("vllm") is not None:  # which reads some of them when it is imported
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """Plain models by family, made once."""
    made = {}

    def get(family):
        if family not in made:
            made[family] = make_plain(family, tmp_path_factory.mktemp("plain") / family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def packed(plain, tmp_path_factory):
    """Checkpoints by (family, dialect, format), with the tokens that offline generation gives."""
    made = {}

    def get(family, dialect, format):
        key = (family, dialect, format)
        if key not in made:
            folder = pack(plain(family), tmp_path_factory.mktemp("packed") / "q", dialect, format)
            made[key] = folder, offline(folder, PROMPTS, NEW)
        return made[key]

    return get


@pytest.fixture
def engine():
    """An engine of vLLM on one rank, in this process; it is gone after the test."""
    from vllm import LLM

    started = []

    def start(folder, **options):
        settings = {
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "max_model_len": 256,
            "max_num_seqs": 4,
            "enforce_eager": True,
        }
        started.append(LLM(model=str(folder), **(settings | options)))
        return started[-1]

    yield start
    started.clear()
    gc.collect()
    if torch.distributed.is_initialized():
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


_outcomes = {}


def pytest_runtest_logreport(report):
    """A test that failed to begin, or to end, has not passed. Each is stored when it is over: a run
    takes most of an hour, and whatever ends it early leaves what was found until then."""
    if report.when == "call" or report.outcome == "failed":
        _outcomes[report.nodeid] = report.outcome
    target = os.environ.get("SERVING_RECORD")
    if target and report.when == "teardown":
        ours = {n.rpartition("/")[2]: o for n, o in _outcomes.items() if "tests/serving/" in n}
        written(Path(target), {"tests": earlier(Path(target)) | ours})
