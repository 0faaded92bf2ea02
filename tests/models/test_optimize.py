"""`optimize_`: a decoder in one native call, beside the model's own way."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import blockscale as bs
import ways
from blockscale.models import decoder
from blockscale.models.decoder import FastDecoder
from blockscale.models.rotation import Rotation

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


def tiny(kind="Llama", dtype=torch.float32, format=bs.KBIT4, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=96, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
        num_key_value_heads=2, tie_word_embeddings=True,
        **{"num_attention_heads": 4, "max_position_embeddings": 512, **options},
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).eval()
    bs.quantize_(model, format, importance=None, progress=False)
    return model


def logits(model, tokens, steps=6):
    """After a prompt, token by token."""
    with torch.inference_mode():
        out = model(input_ids=tokens[:, :5], use_cache=True)
        found = [out.logits[:, -1]]
        for i in range(5, 5 + steps):
            out = model(input_ids=tokens[:, i : i + 1], past_key_values=out.past_key_values)
            found.append(out.logits[:, -1])
    return torch.cat(found)


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


TOKENS = torch.arange(1, 400)[None] % 96


KINDS = {
    "Llama": {},
    "Mistral": {"sliding_window": None},
    "Qwen2": {},
    "Qwen3": {"head_dim": 32},
}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_model(kind):
    """float32 sums of at most k = 160 terms, in another order, through three layers."""
    model = tiny(kind, **KINDS[kind])
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:  # which are all ones, or zeros, in a new model
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    expected = logits(model, TOKENS)
    report = bs.optimize_(model, head=False, x_format=None)
    assert "3 layers in one call" in str(report)
    taken = count_calls(model)
    assert relative(logits(model, TOKENS), expected) < 3 * 160 * 2**-23
    assert taken == [5] + [1] * 6


MIXED = [
    (bs.KBIT4, bs.KBIT5),
    (bs.NVFP4, bs.KBIT2),
    (bs.KBIT4, bs.MXFP6_E2M3),
    (bs.MXFP8, bs.KBIT4),
]
MIXED_INT8 = [(bs.KBIT4, bs.KBIT2), (bs.NVFP4, bs.KBIT4), (bs.KBIT2, bs.NVFP4)]


@pytest.mark.parametrize(
    ("formats", "x_format"),
    [*((each, None) for each in MIXED), *((each, "int8") for each in MIXED_INT8)],
)
def test_products_of_one_row_may_have_several_formats(formats, x_format):
    """Codes of other bits, or in other blocks, meet x in another order."""
    model = tiny(format={"*.k_proj": formats[1], "*": formats[0]})
    for layer in model.modules():
        if isinstance(layer, bs.nn.Linear):
            layer.x_format = x_format
    expected = logits(model, TOKENS)
    assert "3 layers in one call" in str(bs.optimize_(model, head=False, x_format=x_format))
    assert relative(logits(model, TOKENS), expected) < 3 * 160 * 2**-23


def count_calls(model):
    """How many tokens pass all layers at once, call by call."""
    taken = []
    fast = model.model.__dict__["forward"]
    plain = fast._decode

    def counted(call, asked):
        taken.append(asked["input_ids"].shape[1])
        return plain(call, asked)

    fast._decode = counted
    return taken


def prompted(model, *lengths, **options):
    """Logits of tokens that come in pieces of these lengths, and the cache that they leave."""
    found, cache, begin = [], None, 0
    with torch.inference_mode():
        for length in lengths:
            piece = TOKENS[:, begin : begin + length]
            out = model(input_ids=piece, past_key_values=cache, use_cache=True, **options)
            found.append(out.logits[0])
            cache, begin = out.past_key_values, begin + length
    return torch.cat(found), cache


# Less than sixteen tokens, which attend together, just as many, more; keys come 32 at a time. The
# last ones follow others, of which one is alone.
LENGTHS = [(2,), (15,), (16,), (17,), (33,), (70, 1, 2), (1, 37), (40, 130)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("x_format", [None, "int8"])
def test_prompts_are_those_of_the_model(lengths, x_format):
    """float32, or the same blocks of int8, but for numbers of x that lie next to a tie."""
    model = tiny()
    for layer in model.modules():
        if isinstance(layer, bs.nn.Linear):
            layer.x_format = x_format
    expected, wanted = prompted(model, *lengths)
    bs.optimize_(model, head=False, x_format=x_format)
    taken = count_calls(model)
    found, cache = prompted(model, *lengths)
    assert taken == list(lengths)
    allowed = 1 / 127 if x_format else 3 * (160 + sum(lengths)) * 2**-23
    assert relative(found, expected) < allowed
    for layer, other in zip(cache.layers, wanted.layers, strict=True):
        assert layer.keys.shape == other.keys.shape
        assert relative(layer.keys, other.keys) < allowed
        assert relative(layer.values, other.values) < allowed


def test_prompts_longer_than_a_piece(monkeypatch):
    model = tiny()
    expected, _ = prompted(model, 200)
    bs.optimize_(model, head=False, x_format=None)
    taken = count_calls(model)
    found = [prompted(model, 200)]
    for size in (64, 199):  # the last piece has 8 tokens, and one
        monkeypatch.setattr(decoder, "_PIECE", size)
        found.append(prompted(model, 200))
    assert taken == [200] * 3
    for each, cache in found:
        assert cache.get_seq_length() == 200
        assert relative(each, expected) < 3 * 360 * 2**-23


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prompts_in_short_floats_are_no_farther_from_float32_than_the_model_is(dtype):
    exact, _ = prompted(tiny(), 90)
    model = tiny(dtype=dtype)
    before = relative(prompted(model, 90)[0].float(), exact)
    bs.optimize_(model, head=False, x_format=None)
    taken = count_calls(model)
    assert relative(prompted(model, 90)[0].float(), exact) < 1.5 * before
    assert taken == [90]


def test_heads_of_a_size_that_no_register_has():
    model = tiny(num_attention_heads=16, head_dim=18)
    expected, _ = prompted(model, 50, 1)
    bs.optimize_(model, head=False, x_format=None)
    taken = count_calls(model)
    assert relative(prompted(model, 50, 1)[0], expected) < 3 * (288 + 50) * 2**-23
    assert taken == [50, 1]


def test_a_prompt_attends_to_nothing_that_follows():
    """Large scores that a token must not see would take its place."""
    model = tiny()
    bs.optimize_(model, head=False, x_format=None)
    whole, _ = prompted(model, 40)
    for length in (2, 16, 23, 39):
        part, _ = prompted(model, length)
        assert relative(part, whole[:length]) < 3 * 200 * 2**-23


def test_bfloat16_is_no_farther_from_float32_than_the_model_is():
    """Between layers the call has float32, where the model rounds to bfloat16."""
    exact = logits(tiny(), TOKENS)
    model = tiny(dtype=torch.bfloat16)
    before = relative(logits(model, TOKENS).float(), exact)
    bs.optimize_(model, head=False, x_format=None)
    assert relative(logits(model, TOKENS).float(), exact) < 1.5 * before


def test_int8_activations_and_a_packed_head():
    model = tiny()
    twin = copy.deepcopy(model)
    bs.quantize_(twin, bs.KBIT4, where=(), head=True, importance=None, progress=False)
    for module in twin.modules():
        if isinstance(module, bs.nn.Linear):
            module.x_format = "int8"
    report = bs.optimize_(model, head=True)
    assert "lm_head: kbit4" in str(report)
    assert "(a copy: model.embed_tokens keeps the weight)" in str(report)
    assert "22 layers round x to int8" in str(report)
    # The same blocks of int8, but for numbers of x that lie next to a tie: half a step of 1 in 127.
    assert relative(logits(model, TOKENS), logits(twin, TOKENS)) < 1 / 127


def test_the_same_bits_for_any_number_of_threads():
    model = tiny()
    bs.optimize_(model)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(torch.cat((logits(model, TOKENS), prompted(model, 90)[0])))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


def test_a_long_answer_outgrows_its_room():
    model = tiny()
    expected = logits(model, TOKENS, steps=300)
    bs.optimize_(model, head=False, x_format=None)
    assert relative(logits(model, TOKENS, steps=300), expected) < 3 * 305 * 2**-23


def test_threads_may_decode_with_one_model():
    """Each has a cache of its own; what the native call is made of is there once."""
    model = tiny()
    bs.optimize_(model)
    prompts = [TOKENS[:, i : i + 60] for i in range(4)]
    expected = [logits(model, each, steps=40) for each in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda each: logits(model, each, steps=40), prompts))
    assert all(map(torch.equal, found, expected))


def test_a_cache_that_was_copied_or_cropped_shares_nothing():
    model = tiny()
    bs.optimize_(model, head=False, x_format=None)
    with torch.inference_mode():
        cache = model(TOKENS[:, :5]).past_key_values
        model(TOKENS[:, 5:6], past_key_values=cache)
        kept, twin = [layer.keys for layer in cache.layers], copy.deepcopy(cache)
        before = [each.clone() for each in kept]
        model(TOKENS[:, 9:10], past_key_values=twin)
        cache.crop(-1)  # the last token
        other = model(TOKENS[:, 7:8], past_key_values=cache).logits
        assert cache.get_seq_length() == 6
        assert twin.get_seq_length() == 7
        assert all(map(torch.equal, kept, before))
        fresh = model(TOKENS[:, :5]).past_key_values
        assert torch.equal(model(TOKENS[:, 7:8], past_key_values=fresh).logits, other)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ],
)
def test_rotary_positions_of_every_kind(rope):
    """Past the end of a table of them, and past the length from which `dynamic` ones change."""
    options = {"rope_parameters": {"rope_theta": 1e4, **rope}, "max_position_embeddings": 64}
    model = tiny(**options)
    expected = logits(model, TOKENS, steps=300)
    bs.optimize_(model, head=False, x_format=None)
    assert relative(logits(model, TOKENS, steps=300), expected) < 3 * 305 * 2**-23


@pytest.mark.parametrize("rope_type", ["dynamic", "linear"])
def test_rotary_positions_of_prompts(rope_type):
    """`dynamic` ones turn all tokens of a prompt by its length."""
    rope = {"rope_theta": 1e4, "rope_type": rope_type, "factor": 2.0}
    options = {"rope_parameters": rope, "max_position_embeddings": 64}
    expected, _ = prompted(tiny(**options), 100, 90)
    model = tiny(**options)
    bs.optimize_(model, head=False, x_format=None)
    taken = count_calls(model)
    assert relative(prompted(model, 100, 90)[0], expected) < 3 * 350 * 2**-23
    assert taken == [100, 90]


def test_rotary_positions_that_become_others_are_seen():
    model, twin = tiny(), tiny()
    bs.optimize_(model, head=False, x_format=None)
    logits(model, TOKENS)
    for each in (model, twin):
        each.model.rotary_emb.inv_freq = each.model.rotary_emb.inv_freq / 2
    assert relative(logits(model, TOKENS), logits(twin, TOKENS)) < 3 * 160 * 2**-23


def test_a_thread_may_ask_while_another_fills_a_table():
    """Of another part of the positions, some of which both have."""
    rotary, rotation, seen = tiny().model.rotary_emb, Rotation(), []
    other = copy.copy(rotary)

    def interrupted(x, position_ids):
        if not seen:
            seen.append(None)
            seen[0] = rotation.at(305, 1, rotary).clone()
        return rotary(x, position_ids)

    rotation.at(0, 1, rotary)
    other.forward = interrupted
    rotation.at(300, 1, other)
    cosines, sines = rotary(torch.empty(0), torch.tensor([[305]]))
    assert torch.equal(seen[0], torch.stack((cosines[0], sines[0]), dim=1))


def test_states_that_were_asked_for_once_leave_later_calls_as_they_are():
    """transformers hooks the layers then, and leaves the hooks there."""
    model = tiny()
    bs.optimize_(model, head=False, x_format=None)
    with torch.inference_mode():
        assert len(model(TOKENS[:, :6], output_hidden_states=True).hidden_states) == 4
    taken = count_calls(model)
    logits(model, TOKENS)
    assert taken == [5] + [1] * 6


def test_generate_is_as_before():
    model = tiny()
    with torch.inference_mode():
        expected = model.generate(TOKENS[:, :5], max_new_tokens=12, do_sample=False)
        bs.optimize_(model, head=False, x_format=None)
        assert torch.equal(
            model.generate(TOKENS[:, :5], max_new_tokens=12, do_sample=False), expected
        )


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


def test_the_default_dtype_does_not_matter():
    model = tiny()
    expected, _ = prompted(model, 140)
    torch.set_default_dtype(torch.bfloat16)
    try:
        bs.optimize_(model, head=False, x_format=None)
        found, _ = prompted(model, 140)
    finally:
        torch.set_default_dtype(torch.float32)
    assert relative(found, expected) < 3 * 300 * 2**-23


def test_gates_of_another_format_go_the_way_of_the_model():
    model = tiny(format={"*.up_proj": bs.KBIT5, "*": bs.KBIT4})
    report = bs.optimize_(model, head=False)
    assert "left: decoding, layer by layer: layer 0: gate and up have other formats" in str(report)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prompts_in_short_floats_that_are_rounded_to_int8(dtype):
    exact, _ = prompted(tiny(), 90)
    model = tiny(dtype=dtype)
    for layer in model.modules():
        if isinstance(layer, bs.nn.Linear):
            layer.x_format = "int8"
    before = relative(prompted(model, 90)[0].float(), exact)
    bs.optimize_(model, head=False)
    assert relative(prompted(model, 90)[0].float(), exact) < 1.5 * before


def test_what_is_left_is_said():
    with pytest.raises(ValueError, match="no layer is quantised"):
        bs.optimize_(torch.nn.Linear(4, 4))
    with pytest.raises(TypeError, match="model must be an nn"):
        bs.optimize_("model")
    model = tiny()
    with pytest.raises(ValueError, match='x_format must be "int8" or None, got'):
        bs.optimize_(model, x_format="mxfp8")
    model.model.layers[1].mlp.up_proj = torch.nn.Linear(64, 160, bias=False)
    report = bs.optimize_(model, head=False)
    assert "left: decoding, layer by layer: layer 1: a Linear is not a quantised" in str(report)
    model = tiny()
    bs.optimize_(model, head=True)
    again = str(bs.optimize_(model, head=True))
    assert "left: the output head, which is packed already" in again
    assert "left: decoding, which is one call already" in again


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
