"""Models quantised while they are loaded: the weights that `quantize_` gives, compiled too."""

import gc
import importlib
import weakref

import pytest
import torch

import blockscale as bs
from integrations.pretrained.tiny import (
    MIXED,
    TOKENS,
    BlockscaleConfig,
    load,
    logits,
    packed,
    quantized_in_place,
    tiny,
)

auto = importlib.import_module("transformers.quantizers.auto")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many


def test_loading_quantizes_as_quantize_does(plain):
    loaded = load(plain, quantization_config=BlockscaleConfig(MIXED, scale="absmax"))
    twin = quantized_in_place(plain, MIXED, scale="absmax")
    assert packed(loaded).keys() == packed(twin).keys()
    assert not any(part.is_meta for part in loaded.state_dict().values())
    assert torch.equal(logits(loaded), logits(twin))
    assert torch.equal(
        loaded.generate(TOKENS, max_new_tokens=6, do_sample=False),
        twin.generate(TOKENS, max_new_tokens=6, do_sample=False),
    )


def test_layers_and_activations_are_chosen_by_the_config(tmp_path):
    tiny("Llama").save_pretrained(tmp_path / "x")
    config = BlockscaleConfig("mxfp8", layers=["*.mlp.*"], x_format="mxfp8")
    loaded = load(tmp_path / "x", quantization_config=config)
    assert {name.split(".")[-2] for name in packed(loaded)} == {"mlp"}
    assert {module.x_format for module in packed(loaded).values()} == {bs.MXFP8}
    twin = quantized_in_place(tmp_path / "x", "mxfp8", where="*.mlp.*", x_format="mxfp8")
    assert torch.equal(logits(loaded), logits(twin))


@pytest.fixture
def quick_collections():
    """What exists already is left out, which is most of the time that gc.collect takes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_one_weight_is_in_memory_at_a_time(tmp_path, monkeypatch, quick_collections):
    from blockscale.models.pretrained.on_load import QuantizeOnLoad

    tiny("Qwen3Moe").save_pretrained(tmp_path / "x")
    convert, seen, alive = QuantizeOnLoad.convert, [], []

    def watched(self, input_dict, **context):
        gc.collect()
        alive.append(sum(reference() is not None for reference in seen))
        values = [v[0] if isinstance(v, list) else v for v in input_dict.values()]
        seen.extend(weakref.ref(value) for value in values)
        return convert(self, input_dict, **context)

    monkeypatch.setattr(QuantizeOnLoad, "convert", watched)
    load(tmp_path / "x", quantization_config=BlockscaleConfig("nvfp4"))
    assert len(seen) == 2 * (4 + 2)
    assert max(alive) <= 2  # k and q, which wait for v: the three share a tensor scale
    seen.clear(), alive.clear()
    load(tmp_path / "x", quantization_config=BlockscaleConfig("mxfp4"))
    assert set(alive) == {0}


def test_what_was_quantised_on_load_is_saved_for_engines(tmp_path):
    """NVFP4, with the shared tensor scales that the dialect wants."""
    tiny("Llama").save_pretrained(tmp_path / "x")
    model = load(tmp_path / "x", quantization_config=BlockscaleConfig("nvfp4"))
    bs.save(model, tmp_path / "q", dialect="compressed-tensors")
    found = bs.load(tmp_path / "q")
    for name, layer in packed(model).items():
        assert found[f"{name}.weight"] == layer.weight


def test_tied_weights_stay_tied(tmp_path):
    tiny("Llama", tie_word_embeddings=True).save_pretrained(tmp_path / "x")
    loaded = load(tmp_path / "x", quantization_config=BlockscaleConfig("nvfp4", layers="*"))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    loaded.save_pretrained(tmp_path / "y")
    assert torch.equal(logits(load(tmp_path / "y")), logits(loaded))


def test_a_loaded_model_breaks_no_graph(plain):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = load(plain, quantization_config=BlockscaleConfig("nvfp4", scale="absmax"))
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        compiled = run(TOKENS, use_cache=False).logits
    torch.testing.assert_close(compiled, logits(model), rtol=1e-4, atol=1e-5)
    assert not torch._dynamo.utils.counters["graph_break"]
