"""What `optimize_` leaves to the model: other calls, other layers, layers that have changed."""

import copy
import re

import pytest
import torch

import blockscale as bs
import ways
from blockscale.models.decoder import FastDecoder
from models.decoders import TOKENS, count_calls, logits, relative, tiny, transformers
from tiny_models import make_tiny

pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


def test_states_that_were_asked_for_once_leave_later_calls_as_they_are():
    """transformers hooks the layers then, and leaves the hooks there."""
    model = tiny()
    bs.optimize_(model, head=False, x_format=None)
    with torch.inference_mode():
        assert len(model(TOKENS[:, :6], output_hidden_states=True).hidden_states) == 4
    taken = count_calls(model)
    logits(model, TOKENS)
    assert taken == [5] + [1] * 6


def test_other_calls_go_the_way_of_the_model():
    """Gradients, batches, masks, a cropped cache, weights that have changed."""
    model, other = tiny(), tiny()
    bs.optimize_(model, head=False, x_format=None)
    two = TOKENS[:, :12].repeat(2, 1)
    assert torch.equal(model(two).logits, other(two).logits)
    with torch.inference_mode():
        caches = [each(TOKENS[:, :6]).past_key_values for each in (model, other)]
        mask = torch.tensor([[0, 1, 1, 1, 1, 1, 1]])
        masked = [
            each(TOKENS[:, 6:7], past_key_values=cache, attention_mask=mask).logits
            for each, cache in zip((model, other), caches, strict=True)
        ]
        assert relative(*masked) < 3 * 160 * 2**-23  # of prompts that went two ways
        taken, short = count_calls(model), TOKENS[:, :6]
        for call in (
            {"use_cache": False},
            {"output_hidden_states": True},
            {"position_ids": torch.arange(3, 9)[None]},
            {"is_causal": False},
            {"token_type_ids": torch.zeros(1, 6)},
            {"attention_mask": torch.ones(1, 1, 6, 6, dtype=torch.bool)},
            {"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1]])},
            {"past_key_values": transformers.DynamicCache()},  # which has no layers yet
            {"past_key_values": transformers.StaticCache(model.config, max_cache_len=16)},
        ):
            again = copy.deepcopy(call)
            assert torch.equal(model(short, **call).logits, other(short, **again).logits)
        assert taken == []
        del model.model.__dict__["forward"]._decode
    before = logits(model, TOKENS)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
        model.model.layers[0].mlp.down_proj = bs.nn.Linear.from_linear(
            torch.nn.Linear(160, 64, bias=False), bs.KBIT4
        )
    changed = logits(model, TOKENS)
    assert not torch.allclose(changed[-1], before[-1])
    assert torch.equal(logits(copied, TOKENS), before)
    assert isinstance(copied.model.__dict__["forward"], FastDecoder)


def test_tokens_and_embeddings_at_once_are_refused_as_the_model_refuses_them():
    model = tiny()
    bs.optimize_(model, head=False, x_format=None)
    ids = TOKENS[:, :6]
    with torch.inference_mode(), pytest.raises(ValueError, match="exactly one of input_ids"):
        model(ids, inputs_embeds=model.model.embed_tokens(ids))


@pytest.mark.parametrize("wide", ["norm", "layers.2.post_attention_layernorm"])
def test_a_wide_norm_after_all_keys_leaves_the_cache_as_the_model_has_it(wide):
    """A call that goes the model's own way finds keys of its queries' dtype."""
    model = tiny(dtype=torch.bfloat16)
    model.model.get_submodule(wide).float()
    bs.optimize_(model, head=False, x_format=None)
    taken, mask = count_calls(model), torch.tensor([[0, 1, 1, 1, 1, 1]])
    with torch.inference_mode():
        out = model.model(input_ids=TOKENS[:, :5], use_cache=True)
        assert taken == [5]
        assert out.last_hidden_state.dtype == torch.float32
        cache = out.past_key_values
        assert {each.keys.dtype for each in cache.layers} == {torch.bfloat16}
        model.model(input_ids=TOKENS[:, 5:6], past_key_values=cache, attention_mask=mask)


def test_a_wide_norm_between_layers_is_refused():
    model = tiny(dtype=torch.bfloat16)
    model.model.layers[1].input_layernorm.float()
    report = bs.optimize_(model, head=False, x_format=None)
    assert "norms are of torch.bfloat16 and of torch.float32" in str(report)


def turn_off(name):
    return lambda model: setattr(model.config, name, False)


def attend_alike(module, query, key, value, attention_mask, **options):
    return transformers.AttentionInterface()["sdpa"](
        module, query, key, value, attention_mask, **options
    )


def use_another_attention(model):
    transformers.AttentionInterface.register("alike", attend_alike)
    model.set_attn_implementation("alike")


def turn_around(model):
    model.model.layers[1].self_attn.is_causal = False


def quantise_x(model):
    for module in model.modules():
        if isinstance(module, bs.nn.Linear):
            module.x_format = bs.MXFP4


@pytest.mark.parametrize(
    "change",
    [
        turn_off("is_causal"),
        turn_off("return_dict"),
        use_another_attention,
        turn_around,
        quantise_x,
    ],
)
def test_models_that_become_others_go_their_own_way(change):
    model, twin = tiny(format=bs.MXFP8), tiny(format=bs.MXFP8)
    bs.optimize_(model, head=False, x_format=None)
    for each in (model, twin):
        change(each)
    with torch.inference_mode():
        found, expected = (each.model(TOKENS[:, :20], use_cache=True) for each in (model, twin))
    assert type(found) is type(expected)
    assert torch.equal(found[0], expected[0])


def test_sliding_windows_go_the_way_of_the_model():
    model, twin = (tiny("Mistral", sliding_window=8) for _ in range(2))
    report = bs.optimize_(model, head=False, x_format=None)
    assert "left: decoding, layer by layer: layer 0: its tokens attend to 8 tokens alone" in str(
        report
    )
    caches = transformers.DynamicCache(), transformers.DynamicCache()
    with torch.inference_mode():
        for piece in (TOKENS[:, :4], TOKENS[:, 4:40]):
            found, expected = (
                each(piece, past_key_values=cache).logits
                for each, cache in zip((model, twin), caches, strict=True)
            )
            assert torch.equal(found, expected)


@pytest.mark.parametrize("place", ["layers.1.mlp", "norm", "layers.0.self_attn.q_proj"])
def test_hooks_are_called_whenever_they_come(place):
    model, calls = tiny(), []
    bs.optimize_(model, head=False, x_format=None)
    taken = count_calls(model)
    logits(model, TOKENS)
    assert len(taken) == 7
    hook = model.model.get_submodule(place).register_forward_hook(lambda *_: calls.append(1))
    logits(model, TOKENS)
    assert (len(calls), len(taken)) == (7, 7)
    hook.remove()
    logits(model, TOKENS)
    assert (len(calls), len(taken)) == (7, 14)


def test_norms_of_another_size_go_the_way_of_the_model():
    """Which says what is wrong."""
    model = tiny("Qwen3")
    bs.optimize_(model, head=False, x_format=None)
    model.model.layers[1].self_attn.k_norm.weight = torch.nn.Parameter(torch.rand(16))
    with pytest.raises(RuntimeError, match=r"size of tensor a .* must match"):
        logits(model, TOKENS)


def replace_mlp(model, width):
    """Of the second layer."""
    config = copy.deepcopy(model.config)
    config.intermediate_size = width
    torch.manual_seed(2)
    mlp = type(model.model.layers[1].mlp)(config).eval()
    bs.quantize_(mlp, bs.KBIT4, importance=None, progress=False)
    model.model.layers[1].mlp = mlp


@pytest.mark.parametrize("width", [96, 1024], ids=["narrower", "wider"])
def test_layers_of_several_widths_go_the_way_of_the_model(width):
    """The native call has memory for one width. Before `optimize_` and after it."""
    model, late, twin = tiny(), tiny(), tiny()
    bs.optimize_(late, head=False, x_format=None)
    for each in (model, late, twin):
        replace_mlp(each, width)
    report = bs.optimize_(model, head=False, x_format=None)
    assert (
        f"left: decoding, layer by layer: layer 1: its intermediate is {width}, where that of the "
        "first layer is 160" in str(report)
    )
    taken = count_calls(late)
    expected = logits(twin, TOKENS)
    assert all(torch.equal(logits(each, TOKENS), expected) for each in (model, late))
    assert taken == []


def packed(n, k):
    return bs.nn.Linear.from_linear(torch.nn.Linear(k, n, bias=False), bs.KBIT4)


@pytest.mark.parametrize(
    ("name", "n", "k", "said"),
    [
        ("self_attn.q_proj", 32, 64, "its heads is 2, where that of the first layer is 4"),
        ("self_attn.q_proj", 72, 64, r"q is \[72, 64\], where \[64, 64\] is needed"),
        ("self_attn.k_proj", 64, 64, "its kv_heads is 4, where that of the first layer is 2"),
        ("self_attn.v_proj", 64, 64, r"v is \[64, 64\], where \[32, 64\] is needed"),
        ("self_attn.o_proj", 64, 128, r"o is \[64, 128\], where \[64, 64\] is needed"),
        ("mlp.down_proj", 64, 192, r"down is \[64, 192\], where \[64, 160\] is needed"),
        ("mlp.down_proj", 96, 160, r"down is \[96, 160\], where \[64, 160\] is needed"),
    ],
)
def test_every_product_has_to_fit_the_shape_of_the_first_layer(name, n, k, said):
    model = tiny()
    model.model.layers[1].set_submodule(name, packed(n, k))
    reason = FastDecoder(model.model).refusal
    assert re.fullmatch(f"layer 1: {said}", reason)


def test_layers_that_scale_otherwise_go_the_way_of_the_model():
    model, twin = tiny(), tiny()
    for each in (model, twin):
        each.model.layers[1].self_attn.scaling *= 2
    report = bs.optimize_(model, head=False, x_format=None)
    assert "layer 1: its attention_scale is 0.5, where that of the first layer is 0.25" in str(
        report
    )
    assert torch.equal(logits(model, TOKENS), logits(twin, TOKENS))


def test_heads_have_to_share_keys_evenly():
    model = tiny()
    for layer in model.model.layers:
        layer.self_attn.k_proj, layer.self_attn.v_proj = packed(48, 64), packed(48, 64)
    reason = FastDecoder(model.model).refusal
    assert reason == "layer 0: 4 heads cannot share 3 heads of keys evenly"


@pytest.mark.parametrize("width", [32, 128])
def test_embeddings_of_another_width_go_the_way_of_the_model(width):
    """Which says what is wrong."""
    model = tiny()
    bs.optimize_(model, head=False, x_format=None)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="must match"):
        model(inputs_embeds=torch.randn(1, 3, width), use_cache=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", [1, 6])
def test_embeddings_of_another_dtype_give_what_the_model_gives(dtype, tokens):
    model, twin = tiny(), tiny()
    bs.optimize_(model, head=False, x_format=None)
    with torch.inference_mode():
        x = model.model.embed_tokens(TOKENS[:, :tokens]).to(dtype)
        found, expected = (each.model(inputs_embeds=x, use_cache=True) for each in (model, twin))
    states, its = found.last_hidden_state, expected.last_hidden_state
    assert states.dtype == its.dtype
    assert (
        found.past_key_values.layers[0].keys.dtype == expected.past_key_values.layers[0].keys.dtype
    )
    # The model rounds what its first norm gives to the dtype of the embeddings, at most once.
    assert relative(states, its) < 3 * torch.finfo(torch.bfloat16).eps


def test_embeddings_of_float64_are_refused_as_the_model_refuses_them():
    """One token of them, and several."""
    model = tiny()
    bs.optimize_(model, head=False, x_format=None)
    for tokens in (1, 3):
        x = torch.ones(1, tokens, 64, dtype=torch.float64)
        with torch.inference_mode(), pytest.raises(TypeError, match="cast it first"):
            model(inputs_embeds=x, use_cache=True)


def test_embeddings_of_integers_go_the_way_of_the_model():
    """Which rounds what its first norm gives to integers."""
    model, twin = tiny(), tiny()
    bs.optimize_(model, head=False, x_format=None)
    x = TOKENS[:, :64].reshape(1, 1, 64)
    with torch.inference_mode():
        found, expected = (each(inputs_embeds=x, use_cache=True).logits for each in (model, twin))
    assert torch.equal(found, expected)


def test_gates_of_another_format_go_the_way_of_the_model():
    model = tiny(format={"*.up_proj": bs.KBIT5, "*": bs.KBIT4})
    report = bs.optimize_(model, head=False)
    assert "left: decoding, layer by layer: layer 0: gate and up have other formats" in str(report)


def test_what_is_left_is_said():
    with pytest.raises(ValueError, match="no layer is quantised"):
        bs.optimize_(torch.nn.Linear(4, 4))
    with pytest.raises(TypeError, match="model must be an nn"):
        bs.optimize_("model")
    model = tiny()
    with pytest.raises(ValueError, match='x_format must be "int8" or None, got'):
        bs.optimize_(model, x_format="mxfp8")
    with pytest.raises(ValueError, match="nvfp5"):
        bs.optimize_(model, head="nvfp5")
    assert model.model.layers[0].mlp.up_proj.x_format is None
    model.model.layers[1].mlp.up_proj = torch.nn.Linear(64, 160, bias=False)
    report = bs.optimize_(model, head=False)
    assert "left: decoding, layer by layer: layer 1: a Linear is not a quantised" in str(report)
    model = tiny()
    bs.optimize_(model, head=True)
    again = str(bs.optimize_(model, head=True))
    assert "left: the output head, which is packed already" in again
    assert "left: decoding, which is one call already" in again


def test_a_model_whose_experts_alone_are_packed_is_quantised():
    model = make_tiny("Qwen3Moe")
    bs.quantize_(model, "mxfp8", where="*experts*", importance=None)
    report = bs.optimize_(model, head=True)
    assert [line.partition(",")[0] for line in report.changed] == ["lm_head: mxfp8"]
    assert model.lm_head.weight.format == bs.MXFP8
    assert any("decoding, layer by layer" in reason for reason in report.left)


def test_norms_that_get_other_memory_are_bound_anew():
    """A change of dtype keeps the parameters' objects, and frees what they held."""
    model, twin = tiny(), tiny()
    bs.optimize_(model, head=False, x_format=None)
    logits(model, TOKENS)
    for each in (model, twin):
        for layer in each.model.layers:
            with torch.no_grad():
                layer.input_layernorm.weight.copy_(torch.linspace(0.5, 2, 64))
            layer.input_layernorm.to(torch.bfloat16)
    bs.optimize_(twin, head=False, x_format=None)
    assert torch.equal(*(logits(each, TOKENS)[1:] for each in (model, twin)))


@pytest.mark.parametrize("change", ["bias", "x_format", "layer", "norm", "head norm"])
def test_every_change_of_a_bound_layer_is_seen(change):
    model, twin = (tiny("Qwen3" if change == "head norm" else "Llama") for _ in range(2))
    bs.optimize_(model, head=False, x_format=None)
    before = logits(model, TOKENS)
    for each in (model, twin):
        torch.manual_seed(1)
        layer = each.model.layers[1]
        if change == "bias":
            layer.mlp.up_proj.bias = torch.nn.Parameter(torch.randn(160))
        elif change == "x_format":
            for module in each.modules():
                if isinstance(module, bs.nn.Linear):
                    module.x_format = "int8"
        elif change == "layer":
            each.model.layers[0] = layer
        elif change == "head norm":
            layer.self_attn.k_norm.weight = torch.nn.Parameter(torch.rand(128))
        else:
            layer.post_attention_layernorm.weight = torch.nn.Parameter(torch.rand(64))
    bs.optimize_(twin, head=False, x_format="int8" if change == "x_format" else None)
    found = logits(model, TOKENS)
    assert torch.equal(found, logits(twin, TOKENS))
    assert not torch.equal(found, before)


def test_a_layer_that_becomes_another_goes_the_way_of_the_model():
    model, twin = tiny(), tiny()
    bs.optimize_(model, head=False, x_format=None)

    class Doubled(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    for each in (model, twin):
        each.model.layers[1].mlp = Doubled()
    assert torch.equal(logits(model, TOKENS), logits(twin, TOKENS))
