"""A decoder that `optimize_` took, whose modules compute something else: before it and after it."""

import copy
import re

import pytest
import torch

import blockscale as bs
import ways
from models.decoders import TOKENS, count_calls, logits, tiny, transformers

pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


def halve(path):
    """What a module of the decoder returns, by a forward set on the module alone."""

    def change(model):
        module = model.get_submodule(path)
        plain = module.forward

        def halved(*args, **kwargs):
            found = plain(*args, **kwargs)
            return tuple(each / 2 for each in found) if isinstance(found, tuple) else found / 2

        module.forward = halved

    return change


def zero_attention(model):
    attention = model.layers[0].self_attn
    plain = attention.forward
    attention.forward = lambda **options: (0 * plain(**options)[0], None)


class MeanNorm(torch.nn.Module):
    """With the fields of an RMS norm."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.variance_epsilon = weight, 1e-6

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], self.weight)


def replace_norm(path):
    return lambda model: model.set_submodule(path, MeanNorm(model.get_submodule(path).weight))


def ungate(model):
    """By another class of the same fields."""
    kind = type(model.layers[1].mlp)
    other = type("Ungated", (kind,), {"forward": lambda self, x: self.down_proj(self.up_proj(x))})
    model.layers[1].mlp.__class__ = other


def gate_otherwise(model):
    model.layers[1].mlp.act_fn = torch.nn.GELU()


ITS_OWN = "has a forward that is not its class's"
CHANGES = {
    "layer": (halve("layers.1"), f"layer 1: it {ITS_OWN}"),
    "attention": (zero_attention, f"layer 0: self_attn {ITS_OWN}"),
    "mlp": (halve("layers.1.mlp"), f"layer 1: mlp {ITS_OWN}"),
    "product": (halve("layers.2.mlp.up_proj"), f"layer 2: mlp.up_proj {ITS_OWN}"),
    "gate": (halve("layers.1.mlp.act_fn"), f"layer 1: mlp.act_fn {ITS_OWN}"),
    "head norm": (halve("layers.0.self_attn.k_norm"), f"layer 0: self_attn.k_norm {ITS_OWN}"),
    "norm": (halve("layers.0.input_layernorm"), f"layer 0: input_layernorm {ITS_OWN}"),
    "last norm": (halve("norm"), f"the last norm {ITS_OWN}"),
    "rotary": (halve("rotary_emb"), f"the rotary embedding {ITS_OWN}"),
    "other norm": (
        replace_norm("layers.0.post_attention_layernorm"),
        "layer 0: MeanNorm is not Qwen3RMSNorm",
    ),
    "other head norm": (
        replace_norm("layers.1.self_attn.q_norm"),
        "layer 1: MeanNorm is not Qwen3RMSNorm",
    ),
    "other last norm": (replace_norm("norm"), "MeanNorm is not Qwen3RMSNorm"),
    "other mlp": (ungate, "layer 1: Ungated is not Qwen3MLP"),
    "other gate": (gate_otherwise, "layer 1: its gate is GELU"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_modules_that_compute_something_else_go_their_own_way(name):
    change, reason = CHANGES[name]
    model, twin = tiny("Qwen3"), tiny("Qwen3")
    plain = logits(twin, TOKENS)
    for each in (model, twin):
        change(each.model)
    report = bs.optimize_(model, head=False, x_format=None)
    assert re.search(rf"^left: decoding, layer by layer: {reason}(, which .*)?$", str(report), re.M)
    expected = logits(twin, TOKENS)
    assert torch.equal(logits(model, TOKENS), expected)
    assert not torch.allclose(expected, plain)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "other mlp"])
def test_modules_that_change_after_a_call_go_their_own_way(name):
    """But for a module's class, which nobody changes."""
    change, _ = CHANGES[name]
    model, twin = tiny("Qwen3"), tiny("Qwen3")
    bs.optimize_(model, head=False, x_format=None)
    logits(model, TOKENS)
    taken = count_calls(model)
    for each in (model, twin):
        change(each.model)
    assert torch.equal(logits(model, TOKENS), logits(twin, TOKENS))
    assert taken == []


def test_a_forward_that_is_taken_away_again_leaves_one_call():
    model = tiny()
    bs.optimize_(model, head=False, x_format=None)
    before, taken = logits(model, TOKENS), count_calls(model)
    halve("layers.1.mlp")(model.model)
    assert not torch.equal(logits(model, TOKENS), before)
    del model.model.layers[1].mlp.forward
    assert taken == []
    assert torch.equal(logits(model, TOKENS), before)
    assert len(taken) == 7


def test_a_decoder_with_a_forward_of_its_own_keeps_it():
    model, calls = tiny(), []
    plain = model.model.forward
    model.model.forward = lambda *args, **kwargs: (calls.append(1), plain(*args, **kwargs))[1]
    report = bs.optimize_(model, head=False, x_format=None)
    assert f"left: decoding, layer by layer: LlamaModel {ITS_OWN}" in str(report)
    logits(model, TOKENS)
    assert len(calls) == 7


def test_a_forward_around_one_call_is_called():
    model, calls = tiny(), []
    bs.optimize_(model, head=False, x_format=None)
    taken, fast = count_calls(model), model.model.forward
    model.model.forward = lambda *args, **kwargs: (calls.append(1), fast(*args, **kwargs))[1]
    logits(model, TOKENS)
    assert (len(calls), len(taken)) == (7, 7)


def scale(model):
    for layer in model.model.layers:
        layer.self_attn.scaling = 2.0


def level(path):
    return lambda model: setattr(model.model.get_submodule(path), "variance_epsilon", 0.5)


@pytest.mark.parametrize(
    "change",
    [scale, level("norm"), level("layers.1.input_layernorm"), level("layers.0.self_attn.q_norm")],
    ids=["scaling", "last epsilon", "epsilon", "epsilon of heads"],
)
def test_numbers_that_change_after_a_call_are_bound_anew(change):
    model, twin = tiny("Qwen3"), tiny("Qwen3")
    bs.optimize_(model, head=False, x_format=None)
    before = logits(model, TOKENS)
    for each in (model, twin):
        change(each)
    bs.optimize_(twin, head=False, x_format=None)
    taken, found = count_calls(model), logits(model, TOKENS)
    assert len(taken) == 7
    assert torch.equal(found, logits(twin, TOKENS))
    assert not torch.equal(found, before)


def turn_around(model):
    model.model.layers[1].self_attn.is_causal = False


def scale_one(model):
    model.model.layers[1].self_attn.scaling = 2.0


def narrow(model):
    model.config.sliding_window = 3


@pytest.mark.parametrize("change", [turn_around, scale_one, narrow])
def test_attention_that_changes_after_a_call_goes_its_own_way(change):
    model = tiny("Mistral", sliding_window=None)
    bs.optimize_(model, head=False, x_format=None)
    with torch.inference_mode():
        cache = model(TOKENS[:, :8], use_cache=True).past_key_values
        twin = copy.deepcopy(model)
        del twin.model.forward
        taken = count_calls(model)
        for each in (model, twin):
            change(each)
        found, expected = (
            each(TOKENS[:, 8:20], past_key_values=copy.deepcopy(cache)).logits
            for each in (model, twin)
        )
    assert torch.equal(found, expected)
    assert taken == []


def append(model):
    layer = copy.deepcopy(model.layers[0])
    layer.self_attn.layer_idx = len(model.layers)
    model.layers.append(layer)
    model.config.num_hidden_layers += 1


def shorten(model):
    model.layers = torch.nn.ModuleList(list(model.layers)[:2])
    model.config.num_hidden_layers = 2


@pytest.mark.parametrize("change", [append, shorten])
def test_layers_that_come_and_go_after_a_call_are_bound_anew(change):
    model, twin = tiny(), tiny()
    bs.optimize_(model, head=False, x_format=None)
    before = logits(model, TOKENS)
    for each in (model, twin):
        change(each.model)
    bs.optimize_(twin, head=False, x_format=None)
    taken, found = count_calls(model), logits(model, TOKENS)
    assert len(taken) == 7
    assert torch.equal(found, logits(twin, TOKENS))
    assert not torch.equal(found, before)


def test_a_model_that_passes_fewer_layers_than_it_has_goes_its_own_way():
    """As it does while it drafts tokens for itself."""
    model, twin = tiny(), tiny()
    bs.optimize_(model, head=False, x_format=None)
    caches = []
    with torch.inference_mode():
        for each in (model, twin):
            cache = transformers.DynamicCache(config=each.config)
            each.config.num_hidden_layers = 1
            caches.append(cache)
        found, expected = (
            each(TOKENS[:, :8], past_key_values=cache).logits
            for each, cache in zip((model, twin), caches, strict=True)
        )
    assert torch.equal(found, expected)
