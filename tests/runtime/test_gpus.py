"""GPUs by name: facts that a choice can be made by where there is no GPU."""

import pytest

import blockscale as bs
from blockscale import ops
from blockscale.runtime import GPUS, gpu
from blockscale.runtime.cuda import TARGETS
from blockscale.runtime.gpus import like


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_all_facts_and_a_product(name):
    device = gpu(name)
    assert not device.live
    assert device.shared_per_cta == device.shared_per_sm - 1024
    assert device.mma_flops_per_cycle % 512 == 0 < device.mma_flops_per_cycle
    assert min(device.sms, device.sm_hz, device.l2_bytes, device.dram_bytes_per_s) > 0
    told = ops.explain(ops.example("matmul", bs.NVFP4, device, m=16))
    assert told.kernel == "stream"
    assert "by its data sheet" in str(told)
    assert "  expects  " in str(told)


def test_a_gpu_is_found_by_name_and_by_architecture():
    assert gpu("RTX 5090") is gpu("rtx5090")
    assert gpu("sm_90a") is gpu("h200")
    assert {gpu(target).arch for target in TARGETS} == {each.rstrip("a") for each in TARGETS}
    assert gpu("sm_87").arch == "sm_87"  # as its older sibling is
    with pytest.raises(ValueError, match="no GPU 'h300' is known; there are a100"):
        gpu("h300")


def test_drivers_call_them_by_longer_names():
    assert like("NVIDIA H100 PCIe", "sm_90") is gpu("h100")
    assert like("NVIDIA A100 80GB PCIe", "sm_80") is gpu("a100")
    assert like("NVIDIA A30", "sm_80") is gpu("a100")  # which stands for its architecture


def test_features_follow_from_the_architecture():
    assert gpu("h200").wgmma
    assert gpu("h200").clusters
    assert not gpu("a100").pdl
    assert gpu("b200").tcgen05
    assert not gpu("b200").wgmma
    assert gpu("rtx5090").block_scale_mma
