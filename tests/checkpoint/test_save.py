"""What `save` and conversions write beside the tensors."""

import json

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.checkpoint import Settings, load, plan_conversion, run_plan, save


def described(folder):
    return json.loads((folder / "config.json").read_text()).get("quantization_config")


def test_a_folder_of_plain_tensors_does_not_say_that_it_is_quantised(tmp_path):
    save({"a.weight": torch.ones(4, 64)}, tmp_path / "x", dialect="modelopt")
    assert {path.name for path in (tmp_path / "x").iterdir()} == {
        "config.json",
        "model.safetensors",
    }
    assert torch.equal(load(tmp_path / "x")["a.weight"], torch.ones(4, 64))


def two_layers(first, second):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    bs.quantize_(model, "mxfp8", "0", x_format=first)
    bs.quantize_(model, "mxfp8", "1", x_format=second)
    return model


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_what_inputs_are_quantised_to_is_written_or_said_not_to_be(dialect, tmp_path, capsys):
    model = two_layers("int8", "int8")
    save(model, tmp_path / "ours", dialect="blockscale")
    assert described(tmp_path / "ours")["x_format"] == "int8"
    assert capsys.readouterr().err == ""
    save(model, tmp_path / "theirs", dialect=dialect)
    assert "x_format" not in described(tmp_path / "theirs")
    assert f"the {dialect} dialect does not say x_format=int8" in capsys.readouterr().err


@pytest.mark.parametrize("dialect", ["blockscale", "compressed-tensors"])
def test_a_conversion_writes_what_inputs_are_quantised_to_or_says_that_it_does_not(
    dialect, tmp_path, capsys
):
    save(two_layers("int8", "int8"), tmp_path / "ours", dialect="blockscale")
    plan = plan_conversion(tmp_path / "ours", Settings(bs.MXFP8, dialect=dialect))
    run_plan(plan, tmp_path / "converted")
    is_said = dialect == "blockscale"
    assert described(tmp_path / "converted").get("x_format") == ("int8" if is_said else None)
    said = "" if is_said else f"the {dialect} dialect does not say x_format=int8"
    assert said in capsys.readouterr().err


def test_layers_that_differ_in_what_inputs_are_quantised_to_are_named(tmp_path, capsys):
    save(two_layers("int8", None), tmp_path / "x", dialect="blockscale")
    assert "x_format" not in described(tmp_path / "x")
    assert "layers have different x_format (None, int8)" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["x", "x.safetensors"])
@pytest.mark.parametrize(
    ("name", "other", "dialect", "written"),
    [
        ("a.weight", "a.weight_scale", "compressed-tensors", "a.weight_scale"),
        ("l.experts.gate", "l.experts.gate_up_proj", "blockscale", "l.experts.gate_up_proj"),
    ],
)
def test_names_that_meet_in_the_file_are_named(tmp_path, path, name, other, dialect, written):
    tensors = {name: bs.quantize(torch.randn(64, 64), "mxfp8"), other: torch.ones(2)}
    message = f"save: {name} and {other} would both be written as {written}: rename one"
    with pytest.raises(ValueError, match=message):
        save(tensors, tmp_path / path, dialect=dialect)
    assert list(tmp_path.iterdir()) == []


def test_a_scale_of_inputs_is_one_number(tmp_path):
    weight = bs.quantize(torch.randn(64, 64), "nvfp4")
    tensors = {"a.weight": weight, "a.input_scale": torch.ones(2)}
    with pytest.raises(ValueError, match=r"a\.input_scale must be one number"):
        save(tensors, tmp_path / "x", dialect="compressed-tensors")
    assert list(tmp_path.iterdir()) == []
