"""torch's 4-bit product by KleidiAI as a rival: right by torch's reference, which is not timed."""

import platform

import pytest
import torch

from bench.rivals import field
from bench.rivals.torch_kleidiai import TorchKleidiAI, pack
from bench.verify import expect, judge

needs_ops = pytest.mark.skipif(
    "has no _dyn_quant" in TorchKleidiAI().missing(), reason=TorchKleidiAI().missing()
)


def test_it_is_in_the_field():
    assert TorchKleidiAI() in field([], threads=1)


@needs_ops
@pytest.mark.parametrize("shape", [(48, 256), (7, 64)], ids=str)
def test_the_packed_weight_is_the_one_that_it_is_held_to(shape):
    """By the reference on x86, by KleidiAI on ARM."""
    x, w = torch.randn(5, shape[1]).bfloat16(), torch.randn(shape).bfloat16()
    packed = pack(w)
    allowed = expect(x, packed.decoded(), torch.float32, TorchKleidiAI().x_block)
    for each in (packed, packed.copy()):
        assert judge(each.bind(x)(), allowed).reason == ""
    assert judge(pack(w.flip(1)).bind(x)(), allowed).reason != ""


@pytest.mark.skipif(platform.machine() in ("aarch64", "arm64"), reason="is for other CPUs")
def test_elsewhere_it_says_why_it_takes_no_part():
    assert "has no KleidiAI here: it is for ARM" in TorchKleidiAI().missing()


@needs_ops
@pytest.mark.skipif(platform.machine() in ("aarch64", "arm64"), reason="is for other CPUs")
def test_the_reference_is_not_timed():
    with pytest.raises(RuntimeError, match="packed for its reference"):
        TorchKleidiAI().prepare(torch.randn(32, 64).bfloat16())
