"""Launch plans on a GPU. Skipped where there is none."""

import pytest
import torch

import blockscale as bs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_weights_that_change_in_place_are_seen():
    """From the third call on, weights are copied before the kernel ahead has ended."""
    first, second = (bs.quantize(torch.randn(512, 2048), bs.NVFP4).prepare("cuda") for _ in "ab")
    x = torch.randn(1, 2048, device="cuda").bfloat16()
    expected = bs.matmul(x, second)
    for _ in range(5):
        bs.matmul(x, first)
    first.codes.copy_(second.codes)
    first.scale.copy_(second.scale)
    first.tensor_scale.copy_(second.tensor_scale)
    assert torch.equal(bs.matmul(x, first), expected)


def test_inference_mode():
    with torch.inference_mode():
        w = bs.quantize(torch.randn(64, 128, device="cuda"), bs.KBIT4).prepare()
        x = torch.randn(2, 128, device="cuda").bfloat16()
        first = bs.matmul(x, w)
        for _ in range(4):
            assert torch.equal(bs.matmul(x, w), first)


def test_a_chain_of_products_waits_for_its_inputs():
    """Each kernel may start before the one that writes its x has ended."""
    layers = [bs.quantize(torch.randn(1024, 1024) / 32, bs.NVFP4).prepare("cuda") for _ in range(8)]

    def run(x):
        for w in layers:
            x = bs.matmul(x, w)
        return x

    x = torch.randn(1, 1024, device="cuda").bfloat16()
    first = run(x)
    for _ in range(50):
        assert torch.equal(run(x), first)
