"""Experts that models store as [e, k, n]: turned when they are quantised, and only then."""

import json

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import blockscale as bs
from blockscale import cli
from blockscale.checkpoint import Checkpoint, Settings, parse_rules, plan_conversion, run_plan
from checkpoint.models import write_model

GATE_UP, DOWN = "l.experts.gate_up_proj", "l.experts.down_proj"
BIAS = f"{GATE_UP}_bias"
E, H, INNER = 2, 64, 32


def experts():
    torch.manual_seed(0)
    return {
        GATE_UP: torch.randn(E, H, 2 * INNER),
        DOWN: torch.randn(E, INNER, H),
        BIAS: torch.randn(E, 2 * INNER),
        "l.attn.weight": torch.randn(8, H),
    }


def convert(tmp_path, model_type, format, tensors=None, text=None, **settings):
    config = {"model_type": model_type} | ({"text_config": {"model_type": text}} if text else {})
    source = write_model(tmp_path / "source", tensors or experts(), **config)
    plan = plan_conversion(source, Settings(bs.format(format), scale="absmax", **settings))
    run_plan(plan, tmp_path / "q")
    return plan, tmp_path / "q"


@pytest.mark.parametrize("format", ["nvfp4", "kbit4"])
@pytest.mark.parametrize("model_type", ["gpt_oss", "llama4", "llama4_text"])
def test_blocks_run_along_k(model_type, format, tmp_path):
    stored, found = experts(), bs.load(convert(tmp_path, model_type, format)[1])
    rows, bias = stored[GATE_UP].mT, stored[BIAS]
    if model_type == "gpt_oss":  # gate and up in turn
        rows = torch.cat([rows[:, ::2], rows[:, 1::2]], 1)
        bias = torch.cat([bias[:, ::2], bias[:, 1::2]], 1)
    assert found[GATE_UP] == bs.quantize(rows.contiguous(), format)
    assert found[DOWN] == bs.quantize(stored[DOWN].mT.contiguous(), format)
    assert torch.equal(found[BIAS], bias)
    assert isinstance(found["l.attn.weight"], bs.QTensor)


@pytest.mark.parametrize("inner", [16, INNER, 48])  # 2 * INNER is H: gate_up_proj is square
@pytest.mark.parametrize("transposed", [False, True])
def test_shapes_tell_the_orientation(tmp_path, inner, transposed):
    """Published files of Qwen3-VL are [e, k, n], and transformers writes [e, n, k]."""
    torch.manual_seed(0)
    weights = {GATE_UP: torch.randn(E, 2 * inner, H), DOWN: torch.randn(E, H, inner)}
    stored = {name: w.mT.contiguous() if transposed else w for name, w in weights.items()}
    found = bs.load(convert(tmp_path, "qwen3_vl_moe", "nvfp4", stored)[1])
    assert found == {name: bs.quantize(w, bs.NVFP4) for name, w in weights.items()}


@pytest.mark.parametrize("missing", [GATE_UP, DOWN])
@pytest.mark.parametrize("text", ["llama4_text", "openai_privacy_filter"])
def test_the_language_model_tells_the_orientation_of_one_weight(tmp_path, missing, text):
    stored = {name: value for name, value in experts().items() if name != missing}
    found = bs.load(convert(tmp_path, "internvl", "nvfp4", stored, text)[1])
    (other,) = {GATE_UP, DOWN} - {missing}
    assert found[other] == bs.quantize(stored[other].mT.contiguous(), bs.NVFP4)


def test_gate_and_up_in_turn_within_a_model_that_sees(tmp_path):
    found = bs.load(convert(tmp_path, "internvl", "nvfp4", text="gpt_oss")[1])
    assert torch.equal(found[BIAS], torch.cat([experts()[BIAS][:, i::2] for i in (0, 1)], 1))


def test_mxfp4_of_gpt_oss_is_written_as_it_is_published(tmp_path):
    plan, folder = convert(tmp_path, "gpt_oss", "mxfp4")
    assert plan.writer.NAME == "gpt-oss"
    stored, found = experts(), load_file(folder / "model.safetensors")
    q = bs.quantize(stored[GATE_UP].mT.contiguous(), bs.MXFP4)  # rows in the order of the source
    assert torch.equal(found[f"{GATE_UP}_blocks"], q.codes.reshape(E, 2 * INNER, H // 32, 16))
    assert torch.equal(found[f"{GATE_UP}_scales"], q.scale)
    assert torch.equal(found[BIAS], stored[BIAS])
    assert torch.equal(found["l.attn.weight"], stored["l.attn.weight"])
    described = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert described == {"quant_method": "mxfp4", "modules_to_not_convert": ["l.attn"]}
    again = plan_conversion(folder, Settings(bs.MXFP4))  # copied, bytes and biases
    run_plan(again, tmp_path / "again")
    assert found.keys() == (copies := load_file(tmp_path / "again" / "model.safetensors")).keys()
    assert all(torch.equal(found[name], copies[name]) for name in found)


def test_layers_of_gpt_oss_that_are_quantised_already_stay_so(tmp_path):
    """The gpt-oss dialect has them plain, so it is not the default for such a source."""
    _, folder = convert(tmp_path, "gpt_oss", "mxfp8")
    plan = plan_conversion(folder, Settings(bs.MXFP4))
    assert plan.writer.NAME == "blockscale"
    assert plan.formats.keys() == {GATE_UP, DOWN, "l.attn.weight"}


@pytest.mark.parametrize("kept", [GATE_UP, DOWN])
def test_experts_are_quantised_whole_or_not_at_all(kept, tmp_path):
    rules = parse_rules([f"{kept}=keep"])
    plan, folder = convert(tmp_path, "gpt_oss", "kbit4", rules=rules)
    found = bs.load(folder)
    for name in (GATE_UP, DOWN, BIAS):
        assert torch.equal(found[name], experts()[name])  # as the model wants it
    other = DOWN if kept == GATE_UP else GATE_UP
    assert plan.choices[other].reason == f"one layer with {kept}, which is kept"


def test_kept_experts_of_gpt_oss_stay_as_the_model_wants_them(tmp_path):
    """Beside quantised ones, whose gate and up rows and biases are apart here."""
    first, second = (
        {name.replace("l.", f"l.{i}.", 1): x for name, x in experts().items()} for i in (0, 1)
    )
    kept = [name for name in first if ".experts." in name]
    rules = parse_rules(["l.0.experts.*=keep"])
    plan, folder = convert(tmp_path, "gpt_oss", "mxfp4", {**first, **second}, rules=rules)
    assert plan.writer.NAME == "gpt-oss"
    stored, found = load_file(folder / "model.safetensors"), bs.load(folder)
    for name in kept:
        assert torch.equal(stored[name], first[name])
        assert torch.equal(found[name], first[name])
    bias = BIAS.replace("l.", "l.1.", 1)
    assert torch.equal(stored[bias], second[bias])
    assert torch.equal(found[bias], torch.cat([second[bias][:, i::2] for i in (0, 1)], 1))
    bs.save(found, tmp_path / "saved", dialect="gpt-oss")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(torch.equal(saved[name], stored[name]) for name in stored)


@pytest.mark.parametrize("formats", [("kbit4", "kbit3"), ("mxfp8", "nvfp4"), ("mxfp4", "mxfp8")])
def test_biases_are_moved_apart_once(formats, tmp_path):
    """A model of GPT-OSS that is quantised again, from a dialect that has no rows in turn."""
    _, folder = convert(tmp_path, "gpt_oss", formats[0])
    run_plan(plan_conversion(folder, Settings(bs.format(formats[1]))), tmp_path / "again")
    for each in (folder, tmp_path / "again"):
        found = bs.load(each)[BIAS]
        assert torch.equal(found, torch.cat([experts()[BIAS][:, i::2] for i in (0, 1)], 1))


def test_errors_are_measured_in_one_orientation(tmp_path):
    _, folder = convert(tmp_path, "gpt_oss", "mxfp8")
    command = ["inspect", str(folder), "--source", str(tmp_path / "source"), "--json"]
    result = CliRunner().invoke(cli.commands, command, catch_exceptions=False)
    rows = json.loads(result.output)["tensors"]
    assert [row["error"] < 0.05 for row in rows if row["quantised"]] == [True] * 3


def test_plain_checkpoints_are_read_as_they_are(tmp_path):
    source = write_model(tmp_path / "source", experts(), model_type="gpt_oss")
    assert Checkpoint(source).tensors[GATE_UP].shape == (E, H, 2 * INNER)
    assert torch.equal(bs.load(source)[BIAS], experts()[BIAS])
