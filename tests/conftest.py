"""Shared parameters. A format or a kernel joins the tests by being registered."""

import gc
import os
from pathlib import Path

import pytest
import torch

from blockscale.formats import CATALOGUE, NVFP4

# Formats of a user's own: other blocks, other scales, an asymmetric codebook, a small float that
# nobody ships.
ODD_CODEBOOK = (-0.9, -0.4, -0.1, 0.0, 0.05, 0.2, 0.55, 1.0)
CUSTOM = [
    NVFP4.replace(name="fp4_block32_e8m0", block=32, scale="e8m0", tensor_scale="none"),
    NVFP4.replace(name="fp8_ue4m3", element="e4m3"),
    NVFP4.replace(name="fp4_f32", scale="f32", tensor_scale="none"),
    NVFP4.replace(name="fp6_e4m4_pow2", element="e3m2", scale="e4m4", tensor_scale="pow2"),
    NVFP4.replace(name="e3m3_block64", element="e3m3", block=64, scale="e8m0", tensor_scale="none"),
    CATALOGUE["kbit3"].replace(name="odd_codebook", codebook=ODD_CODEBOOK),
    CATALOGUE["kbit4"].replace(name="kbit4_block128_ue4m3", block=128, scale="ue4m3"),
    CATALOGUE["kbit2"].replace(name="kbit2_e8m0", scale="e8m0", tensor_scale="none"),
    CATALOGUE["kbit5"].replace(name="kbit5_f32", scale="f32", tensor_scale="none"),
]
FORMATS = [*CATALOGUE.values(), *CUSTOM]


GPU_TESTS = Path(__file__).with_name("gpu")


def pytest_ignore_collect(collection_path):
    """Without a GPU none of its two thousand tests runs: one line says so, and no thousands of
    skips. What the command line names is collected all the same."""
    return True if collection_path == GPU_TESTS and not torch.cuda.is_available() else None


def pytest_collection_modifyitems(items):
    """Some tests compile for minutes: they come first, so that no worker is left alone with one."""
    items.sort(key=lambda item: item.path.name != "test_cuda_builds.py")


def pytest_collection_finish():
    """What is imported by now stays: a million objects, which the garbage collector would look
    through dozens of times, a quarter of a second each."""
    gc.collect()
    gc.freeze()


def pytest_report_header():
    return None if torch.cuda.is_available() else "tests/gpu: not collected, no CUDA device"


def pytest_generate_tests(metafunc):
    """A test that asks for `fmt` runs for every format."""
    if "fmt" in metafunc.fixturenames:
        metafunc.parametrize("fmt", FORMATS, ids=str)


# Whoever runs the tests may have tuned this machine: kernels are chosen by rule all the same.
os.environ["BLOCKSCALE_TUNED"] = "0"

# Workers share the machine: each with all of its threads would keep the others waiting. The same
# holds for the processes that tests start, which read the variable.
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
torch.set_num_threads(max(1, torch.get_num_threads() // _workers))
os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())


@pytest.fixture(autouse=True)
def _seed():
    """Without a GPU, torch.manual_seed keeps a stack trace for each kind of device there might be:
    milliseconds at every test."""
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def _onednn():
    """On a CPU without bfloat16, torch turns oneDNN off for good at the first product of it that
    fails, and float32 products after that have other bits than those of a new process."""
    torch.backends.mkldnn.enabled = True


@pytest.fixture
def flush_denormal():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    yield
    torch.set_flush_denormal(False)
