"""`optimize_`: a decoder in one native call, beside the model's own way."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import blockscale as bs
import ways
from blockscale.models import decoder, optimize
from blockscale.models.rotation import Rotation
from models.decoders import TOKENS, count_calls, logits, prompted, relative, tiny

pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


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


def test_generate_is_as_before():
    model = tiny()
    with torch.inference_mode():
        expected = model.generate(TOKENS[:, :5], max_new_tokens=12, do_sample=False)
        bs.optimize_(model, head=False, x_format=None)
        assert torch.equal(
            model.generate(TOKENS[:, :5], max_new_tokens=12, do_sample=False), expected
        )


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


def test_weights_that_are_packed_anew_are_let_go_one_by_one(monkeypatch):
    """Else a model would need twice its memory."""
    model = tiny()
    before = [weakref.ref(each) for name, each in model.named_buffers() if "codes" in name]
    alive = []

    def look(model, notes):
        bind(model, notes)
        gc.collect()
        alive.append(sum(each() is not None for each in before))

    bind = optimize._decode_in_one_call
    monkeypatch.setattr(optimize, "_decode_in_one_call", look)
    bs.optimize_(model)
    assert before
    assert alive == [0]
