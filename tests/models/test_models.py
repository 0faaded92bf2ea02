"""Loading, recipes, decoding of weights, sizes, text and generation."""

import re
import sys

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import Settings, plan_conversion, run_plan
from blockscale.models import (
    Recipe,
    best_dtype,
    bits_per_weight,
    compare,
    decode_,
    generate,
    is_quantized,
    judge,
    load_model,
    load_tokenizer,
    model_bytes,
    parse_dtype,
    precision,
    python_reference,
    tokenize,
)
from models.tiny import text, write_tiny


@pytest.mark.parametrize("format", ["nvfp4", "kbit3"])  # two dialects
def test_quantised_folders_are_loaded_as_they_are(folder, tmp_path, format):
    run_plan(plan_conversion(folder, Settings(bs.format(format))), tmp_path / "q", lambda *_: None)
    model = load_model(tmp_path / "q", torch.float32)
    stored = bs.load(tmp_path / "q")
    layer = model.model.layers[1].mlp.down_proj
    assert layer.weight == stored["model.layers.1.mlp.down_proj.weight"]
    assert is_quantized(model)
    twin = load_model(folder, torch.float32)
    for name, module in model.named_modules():
        if isinstance(module, bs.nn.Linear):
            twin.get_submodule(name).weight.data = module.dequantize()
    ids = torch.arange(2, 12)[None]
    with torch.inference_mode():  # buffers that no file holds are there, too
        torch.testing.assert_close(model(ids).logits, twin(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such folder"),
        (lambda path: path.mkdir(), "is not a model: it has no config.json"),
    ],
)
def test_paths_that_are_no_models(tmp_path, make, message):
    make(tmp_path / "model")
    for load in (load_model, load_tokenizer):
        with pytest.raises((ValueError, OSError), match=message):
            load(tmp_path / "model")


def test_no_tokenizer_is_said(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer, only a model"):
        load_tokenizer(write_tiny(tmp_path / "model", tokenizer=False))


def test_no_transformers_is_said_with_the_fix(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'blockscale\[models\]'"):
        load_model(folder)


def test_dtypes(folder, monkeypatch):
    assert load_model(folder, torch.bfloat16).dtype == torch.bfloat16
    monkeypatch.setattr(precision, "emulates_bfloat16", lambda device: True)
    assert best_dtype(torch.bfloat16, "cpu") == torch.float32
    monkeypatch.setattr(precision, "emulates_bfloat16", lambda device: False)
    assert best_dtype(torch.bfloat16, "cpu") == torch.bfloat16
    assert parse_dtype("float16") == torch.float16
    assert parse_dtype(None) is None
    with pytest.raises(ValueError, match="use one of float32, bfloat16, float16"):
        parse_dtype("int8")


def test_recipes(folder):
    model = load_model(folder, torch.float32)
    mixed = Recipe.parse("*.down_proj=mxfp8,*.o_proj=keep,kbit3+fit").copy_of(model)
    layer = mixed.model.layers[0]
    assert layer.mlp.down_proj.weight.format == bs.MXFP8
    assert isinstance(layer.self_attn.o_proj, torch.nn.Linear)
    assert layer.mlp.up_proj.weight.format.name == "kbit3-fitted"
    assert not is_quantized(model)
    with pytest.raises(ValueError, match="did you mean 'kbit3'"):
        Recipe.parse("*.o_proj=kbti3")
    for twice, pattern in (("kbit4,kbit5", "*"), ("*.o_proj=keep,*.o_proj=kbit4", "*.o_proj")):
        with pytest.raises(ValueError, match=re.escape(f"two formats for '{pattern}'")):
            Recipe.parse(twice)


def test_decoded_layers_compute_what_the_kernels_do(folder):
    ids = torch.randint(2, 12, (60,))
    model = Recipe.parse("nvfp4").copy_of(load_model(folder, torch.float32))
    kernels = compare({"it": model}, ids)["it"].losses
    decode_(model)
    assert not any(isinstance(m, bs.nn.Linear) for m in model.model.layers[0].mlp.children())
    torch.testing.assert_close(
        compare({"it": model}, ids)["it"].losses, kernels, atol=1e-4, rtol=1e-4
    )


def test_layers_that_quantise_their_inputs_are_not_decoded(folder):
    model = load_model(folder, torch.float32)
    bs.quantize_(model, bs.NVFP4, x_format=bs.NVFP4)
    decode_(model)
    assert isinstance(model.model.layers[0].mlp.up_proj, bs.nn.Linear)


def test_sizes(tmp_path):
    model = load_model(write_tiny(tmp_path / "tied", tie_word_embeddings=True), torch.float32)
    linear = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
    rest = 16 * 64 + 5 * 64 + model.model.rotary_emb.inv_freq.numel()
    rest += model.model.rotary_emb.original_inv_freq.numel()
    assert model_bytes(model) == 4 * (linear + rest)
    assert bits_per_weight(model) == 32
    quantized = Recipe.parse("mxfp8").copy_of(model)
    assert bits_per_weight(quantized) == 8.25
    assert model_bytes(quantized) == 4 * rest + linear * 8.25 / 8


def test_layers_that_are_kept_count_among_the_bits_of_linear_layers(folder):
    model = load_model(folder, torch.bfloat16)
    mixed = Recipe.parse("*.mlp.*=keep,mxfp8").copy_of(model)
    attention, mlp = 2 * 64 * 64 + 2 * 32 * 64, 3 * 96 * 64
    wanted = (8.25 * attention + 16 * mlp) / (attention + mlp)
    assert bits_per_weight(mixed) == pytest.approx(wanted)
    bs.quantize_(mixed, bs.MXFP8, importance=None)
    assert bits_per_weight(mixed) == 8.25  # the head, which is kept, is left out


def test_biases_of_experts_do_not_count_among_the_bits():
    import transformers

    config = transformers.GptOssConfig(
        vocab_size=16, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, num_local_experts=4,
    )  # fmt: skip
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    mixed = Recipe.parse("*.experts=keep,mxfp8").copy_of(model)
    attention, experts = 4 * 64 * 64, 4 * 3 * 64 * 64
    wanted = (8.25 * attention + 16 * experts) / (attention + experts)
    assert bits_per_weight(mixed) == pytest.approx(wanted)


def test_adapters_do_not_count_among_the_bits_of_linear_layers(folder):
    peft = pytest.importorskip("peft")
    model = load_model(folder, torch.float32)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"]))
    assert bits_per_weight(adapted) == 32
    bs.quantize_(adapted, bs.MXFP8, importance=None)
    assert bits_per_weight(adapted) == 8.25


def test_judge_puts_it_together(folder):
    model = load_model(folder, torch.float32)
    models = {"it": model, "small": Recipe.parse("kbit2").copy_of(model)}
    it, small = judge(models, torch.randint(2, 12, (60,)), reference="it", length=8)
    assert (it.ratio, it.divergence) == (1, 0)
    assert small.ratio == pytest.approx(small.perplexity / it.perplexity)
    assert small.divergence > 0
    assert 2.2 < small.bits_per_weight < 2.4
    assert small.bytes < it.bytes
    (alone,) = judge({"it": model}, torch.randint(2, 12, (60,)))
    assert alone.ratio is None


def test_text(folder, tmp_path):
    tokenizer = load_tokenizer(folder)
    assert tokenize(tokenizer, "low bit", 2).tolist() == [2, 3]
    (tmp_path / "text").write_text(text(30))
    assert len(tokenize(tokenizer, tmp_path / "text", 20)) == 20
    with pytest.raises(ValueError, match="only 2 tokens and 3 are wanted"):
        tokenize(tokenizer, "low bit", 3)
    assert len(python_reference()) > 400_000
    assert "yield" in python_reference()


def test_generation_is_that_of_transformers(folder):
    model, tokenizer = load_model(folder, torch.float32), load_tokenizer(folder)
    pieces = []
    written = generate(model, tokenizer, "small models", 12, on_text=pieces.append)
    ids = torch.tensor([tokenizer("small models")["input_ids"]])
    expected = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert list(written.tokens) == expected[0, ids.shape[1] :].tolist()
    assert "".join(pieces) == written.text
    assert written.prompt_tokens == 2
    assert written.tokens_per_second > 0


def test_generation_stops_at_the_end_token(folder):
    model, tokenizer = load_model(folder, torch.float32), load_tokenizer(folder)
    first = generate(model, tokenizer, "fast", 1).tokens[0]
    model.generation_config.eos_token_id = [first, 15]
    written = generate(model, tokenizer, "fast", 8)
    assert written.tokens == (first,)


def learnt_positions():
    """A model of 16 tokens and 24 positions."""
    import transformers

    sizes = {"vocab_size": 16, "n_positions": 24, "n_embd": 32, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()


def test_positions_that_a_model_has_not_are_said(folder):
    model, tokenizer = learnt_positions(), load_tokenizer(folder)
    ids = torch.randint(2, 12, (60,))
    with pytest.raises(ValueError, match="GPT2LMHeadModel has 24 positions, and 32 tokens"):
        compare({"it": model}, ids, length=32)
    assert compare({"it": model}, ids, length=24)["it"].tokens == 59
    with pytest.raises(ValueError, match="and 25 tokens are to be read together"):
        generate(model, tokenizer, "low bit", 30)
    assert len(generate(model, tokenizer, "low bit", 23).tokens) == 23


@pytest.mark.parametrize("kind", ["GPTJForCausalLM", "OpenAIGPTLMHeadModel"])
def test_positions_are_said_where_torch_speaks_of_sizes(kind):
    import transformers

    sizes = {"vocab_size": 16, "n_positions": 24, "n_embd": 32, "n_layer": 1, "n_head": 2}
    made = getattr(transformers, kind)
    model = made(made.config_class(**sizes, rotary_dim=4)).eval()
    with pytest.raises(ValueError, match=f"{kind} has 24 positions, and 32 tokens"):
        compare({"it": model}, torch.randint(2, 12, (60,)), length=32)


def test_tokens_that_a_model_has_not_are_said():
    ids = torch.tensor([3, 4, 16, 5])
    with pytest.raises(ValueError, match="embeds 16 tokens, and the text has number 16"):
        compare({"it": learnt_positions()}, ids)


def test_chat_templates_are_used_where_wanted(tmp_path):
    template = "{{ messages[0]['content'] }}{% if add_generation_prompt %} so on and on{% endif %}"
    folder = write_tiny(tmp_path / "chat", template=template)
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert generate(model, tokenizer, "low bit", 1).prompt_tokens == 6
    assert generate(model, tokenizer, "low bit", 1, chat=False).prompt_tokens == 2
    with pytest.raises(ValueError, match="no tokens"):
        generate(model, tokenizer, "", 1, chat=False)
