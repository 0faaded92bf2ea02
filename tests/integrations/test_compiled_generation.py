"""Packed models with a static cache, compiled as one graph, and under accelerate's offloading."""

import pytest
import torch

import blockscale as bs
from tiny_models import make_tiny

transformers = pytest.importorskip("transformers", minversion="5.16")

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many

TOKENS = torch.arange(8)[None] * 7 % 128
SHORT = {"max_new_tokens": 4, "do_sample": False}


@pytest.fixture
def model():
    """With linear layers and experts."""
    model = make_tiny("Qwen3Moe")
    bs.quantize_(model, bs.KBIT4, importance=None)
    return model


def test_a_static_cache_generates_the_same_tokens(model):
    wanted = model.generate(TOKENS, **SHORT)
    assert torch.equal(model.generate(TOKENS, cache_implementation="static", **SHORT), wanted)


def test_a_step_with_a_static_cache_is_one_graph(model):
    """`fullgraph` raises at the first break. The backend runs what was traced, op by op."""

    def step(forward):
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        found = []
        with torch.no_grad():
            for part in (TOKENS, TOKENS[:, :1]):  # prefill and one token
                found.append(forward(part, past_key_values=cache, use_cache=True).logits)
        return found

    model.set_attn_implementation("eager")  # the others depend on whether they are compiled
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    for found, wanted in zip(step(compiled), step(model), strict=True):
        assert torch.equal(found, wanted)


def test_accelerate_offloads_parameters_and_leaves_packed_bytes(model):
    accelerate = pytest.importorskip("accelerate")
    with torch.no_grad():
        wanted = model(TOKENS).logits
        accelerate.cpu_offload(model, execution_device="cpu")
        for _ in range(2):
            assert torch.equal(model(TOKENS).logits, wanted)


def test_packed_bytes_that_are_offloaded_raise():
    """They are packed at their first use; what accelerate would bring back is from before that."""
    accelerate = pytest.importorskip("accelerate")
    layer = bs.nn.Linear.from_linear(torch.nn.Linear(64, 48), bs.NVFP4)
    x = torch.randn(2, 64)
    layer(x)
    accelerate.cpu_offload(layer, execution_device="cpu", offload_buffers=True)
    with pytest.raises(ValueError, match="this looks incorrect"):
        layer(x)
