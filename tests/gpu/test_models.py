"""Whole models on a GPU beside the same models on the CPU. Skipped where there is no GPU."""

import pytest
import torch

import blockscale as bs
from tiny_models import EXTRA, make_tiny

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("some", [bs.NVFP4, bs.MXFP8, bs.KBIT4], ids=str)
@pytest.mark.parametrize("name", EXTRA)
def test_logits_and_tokens(name, some):
    """Numbers are rounded to bfloat16 on the way, and a token near the edge between two experts may
    go to the other one: most tokens must agree, to what some dozen such roundings leave."""
    torch.manual_seed(0)
    model = make_tiny(name)
    bs.quantize_(model, some)
    ids = torch.randint(128, (2, 40))
    with torch.inference_mode():
        expected = model(ids).logits.double()
        there = model.to("cuda", torch.bfloat16)
        placed = [each for each in there.modules() if isinstance(each, bs.nn.Linear)]
        assert placed
        assert all(each.weight.device.type == "cuda" for each in placed)
        logits = there(ids.cuda()).logits.cpu().double()
        tokens = there.generate(ids[:, :5].cuda(), max_new_tokens=6, do_sample=False)
    off = (logits - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert off.median() < 24 * 2.0**-9
    assert tokens.shape == (2, 11)
