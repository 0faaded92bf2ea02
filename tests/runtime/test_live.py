"""The facts of a live GPU: what the driver tells, and rates of the table of GPUs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.kernels.matmul import stream
from blockscale.runtime import device_of, gpu


@pytest.fixture
def live(monkeypatch):
    """A GPU as torch would describe it."""

    def install(name, major, minor, sms, shared=233472):
        facts = SimpleNamespace(
            name=name,
            major=major,
            minor=minor,
            multi_processor_count=sms,
            shared_memory_per_multiprocessor=shared,
            L2_cache_size=60 << 20,
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
        device_of.cache_clear()
        return device_of(torch.device("cuda", 0))

    yield install
    device_of.cache_clear()


def test_an_h200_is_the_one_of_the_table_but_live(live):
    assert live("NVIDIA H200", 9, 0, 132) == replace(gpu("h200"), live=True)


def test_the_driver_is_believed_and_the_table_gives_rates(live):
    half = live("NVIDIA H100 PCIe", 9, 0, 114)
    assert half.sms == 114
    assert half.dram_bytes_per_s == gpu("h100").dram_bytes_per_s
    assert live("NVIDIA Orin", 8, 7, 16, 167936).arch == "sm_87"


def test_choices_for_a_live_gpu_are_those_for_its_entry(live):
    here = live("NVIDIA H200", 9, 0, 132)
    for m in (1, 16, 128):
        asked = ops.example("matmul", bs.NVFP4, gpu("h200"), m=m)
        assert stream.configs(asked) == stream.configs(replace(asked, device=here))
