"""Where a checkpoint says that it is quantised, and what is made of one that does not."""

import json

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs
from blockscale.checkpoint import Settings, load, plan_conversion, run_plan, save
from blockscale.checkpoint.contents import untied
from checkpoint.damage import rewrite_json

PLACES = {
    "compression_config": lambda described: {"compression_config": described},
    "text_config": lambda described: {"text_config": {"quantization_config": described, "n": 3}},
    "both": lambda described: {"text_config": {"compression_config": described, "n": 3}},
    "null": lambda described: {"quantization_config": None, "compression_config": described},
}


def written(tmp_path, dialect, fmt="mxfp8"):
    tensors = {"a.weight": bs.quantize(torch.randn(64, 64), fmt), "b.bias": torch.ones(3)}
    save(tensors, tmp_path / "x", dialect=dialect)
    return tmp_path / "x", tensors


def move(folder, place):
    config = json.loads((folder / "config.json").read_text())
    moved = PLACES[place](config["quantization_config"])
    (folder / "config.json").write_text(json.dumps({"model_type": "x", **moved}))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt", "blockscale"])
def test_a_description_is_found_wherever_engines_look_for_it(tmp_path, dialect, place):
    folder, tensors = written(tmp_path, dialect)
    move(folder, place)
    found = load(folder)
    assert found["a.weight"] == tensors["a.weight"]
    assert found.keys() == tensors.keys()


@pytest.mark.parametrize("place", PLACES)
def test_a_converted_checkpoint_is_described_once(tmp_path, place):
    folder, tensors = written(tmp_path, "compressed-tensors")
    move(folder, place)
    plan = plan_conversion(folder, Settings(bs.MXFP8, dialect="modelopt"))
    run_plan(plan, tmp_path / "y")
    config = json.loads((tmp_path / "y" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "modelopt"
    assert json.dumps(config).count("quant_method") == 1
    assert config.get("text_config", {"n": 3}) == {"n": 3}
    assert load(tmp_path / "y")["a.weight"] == tensors["a.weight"]


@pytest.mark.parametrize("place", PLACES)
def test_a_config_of_another_quantisation_is_not_kept(tmp_path, place):
    old = PLACES[place]({"quant_method": "gptq"})
    save({"a.weight": torch.ones(4, 64)}, tmp_path / "x", config=old)
    assert "gptq" not in (tmp_path / "x" / "config.json").read_text()
    assert torch.equal(load(tmp_path / "x")["a.weight"], torch.ones(4, 64))
    assert "gptq" in json.dumps(old)


@pytest.mark.parametrize("text", [7, [], "x"])
def test_a_text_config_of_another_type_says_nothing(tmp_path, text):
    save({"a.weight": torch.ones(4, 64)}, tmp_path / "x", config={"text_config": text})
    assert load(tmp_path / "x").keys() == {"a.weight"}


# --- parts without a description ---


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_parts_of_quantised_weights_do_not_pass_for_plain_tensors(tmp_path, dialect):
    folder, _ = written(tmp_path, dialect)
    rewrite_json(folder / "config.json", dict.clear)
    (folder / "hf_quant_config.json").unlink(missing_ok=True)
    with pytest.raises(
        ValueError, match=r"x: a.weight.* is part of a quantised.* config.json does"
    ):
        load(folder)


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_one_file_of_a_quantised_folder_is_refused(tmp_path, dialect):
    folder, tensors = written(tmp_path, dialect)
    with pytest.raises(ValueError, match=r"model.safetensors: a.weight.* name its folder"):
        load(folder / "model.safetensors")
    save(tensors, tmp_path / "alone.safetensors", dialect=dialect)
    assert load(tmp_path / "alone.safetensors")["a.weight"] == tensors["a.weight"]


@pytest.mark.parametrize(
    "names",
    [
        ("a.weight_packed",),
        ("l.experts.down_proj_blocks", "l.experts.down_proj_scales"),
        ("a.weight", "a.weight.absmax", "a.weight.quant_map"),
    ],
)
def test_parts_are_known_by_their_names(tmp_path, names):
    save_file({name: torch.ones(2) for name in names}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="is part of a quantised weight"):
        load(tmp_path)


def test_state_dicts_of_packed_layers_come_back(tmp_path):
    """Which have the names of their formats with them."""
    layer = bs.nn.Linear(64, 32, format=bs.NVFP4)
    save(layer.state_dict(), tmp_path / "x")
    twin = bs.nn.Linear(64, 32, format=bs.NVFP4)
    twin.load_state_dict(load(tmp_path / "x"))
    assert twin.weight == layer.weight


def test_a_plain_weight_may_have_a_scale_beside_it(tmp_path):
    plain = {"a.weight": torch.ones(4, 64), "a.weight_scale": torch.ones(4)}
    save(plain, tmp_path / "x")
    assert load(tmp_path / "x").keys() == plain.keys()


def test_names_that_only_resemble_parts_are_plain(tmp_path):
    names = {"a.weight_scale", "b.proj_blocks", "codes", "c.scale", "c.absmax"}
    save({name: torch.ones(2) for name in names}, tmp_path / "x")
    assert load(tmp_path / "x").keys() == names


@pytest.mark.parametrize(
    ("name", "tied"),
    [("lm_head", False), ("model.lm_head", False), ("proj_out", False), ("visual.proj_out", True)],
)
def test_a_config_is_untied_where_the_head_itself_is_quantised(name, tied):
    config = untied({"tie_word_embeddings": True}, [f"{name}.weight"])
    assert config["tie_word_embeddings"] is tied
