"""Why CUDA kernels are not used, in words."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from blockscale.runtime import Device, gpu
from blockscale.runtime.cuda import cuda_refusal, load_nvrtc, refusal
from blockscale.runtime.cuda.nvrtc import Nvrtc
from fresh_process import run_program


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.delenv("BLOCKSCALE_CUDA", raising=False)
    monkeypatch.setattr(refusal, "load_nvrtc", lambda: Nvrtc(None, "12.8", (80, 86, 90)))
    cuda_refusal.cache_clear()
    yield
    cuda_refusal.cache_clear()


def here(arch):
    return Device(name=arch, arch=arch, live=True)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("sm_80", None),
        ("sm_87", None),
        ("sm_90a", None),
        ("cpu", "runs on NVIDIA GPUs; this is cpu"),
        ("mps", "runs on NVIDIA GPUs; this is mps"),
        ("sm_75", "sm_75 is older than sm_80"),
        ("sm_121", "NVRTC 12.8 does not know sm_121: a newer torch brings a newer one"),
    ],
)
def test_targets(target, reason):
    assert cuda_refusal(here(target)) == reason


def test_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CUDA", "0")
    assert cuda_refusal(here("sm_90")) == "BLOCKSCALE_CUDA=0 turns it off"
    assert cuda_refusal(here("cpu")) == "runs on NVIDIA GPUs; this is cpu"


def test_rocm_is_not_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert cuda_refusal(here("sm_94")) == "this torch is built for ROCm 7.0, not for CUDA"


def test_a_missing_compiler(monkeypatch):
    monkeypatch.setattr(refusal, "load_nvrtc", lambda: "no NVRTC: how to get it")
    assert cuda_refusal(gpu("h200")) is None  # which is not here, and needs none
    assert cuda_refusal(here("sm_90")) == "no NVRTC: how to get it"


@pytest.mark.skipif(isinstance(load_nvrtc(), str), reason=str(load_nvrtc()))
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="not Linux")
def test_both_libraries_of_nvrtc_are_opened():
    """The packages of 13.0 do not find the second one by themselves."""
    code = (
        "from blockscale.runtime.cuda import load_nvrtc\n"
        "print(load_nvrtc().version, 'libnvrtc-builtins.so' in open('/proc/self/maps').read())"
    )
    done = run_program(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "True"


@pytest.fixture
def _forget_nvrtc():
    load_nvrtc.cache_clear()
    yield
    load_nvrtc.cache_clear()


@pytest.mark.usefixtures("_forget_nvrtc")
def test_missing_bindings_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    told = load_nvrtc()
    assert told.startswith(
        "no NVRTC: cuda-bindings is not installed (pip install 'blockscale[cuda]'"
    )


@pytest.mark.usefixtures("_forget_nvrtc")
def test_a_missing_library_is_named(monkeypatch):
    def missing():
        raise RuntimeError("Failure finding libnvrtc.so\nand where it was looked for")

    bindings = SimpleNamespace(nvrtc=SimpleNamespace(nvrtcVersion=missing))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    assert load_nvrtc().startswith("no NVRTC: Failure finding libnvrtc.so (pip install ")
