"""Models that were quantised in place, saved by transformers: they load right, or not at all."""

import importlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.checkpoint import Settings, plan_conversion, run_plan
from tiny_models import make_tiny

transformers = pytest.importorskip("transformers", minversion="5.16")
integration = importlib.import_module("blockscale.integrations.transformers")
integration.unregister()  # other tests of this process meet transformers as it comes

AutoModelForCausalLM = transformers.AutoModelForCausalLM
pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, which have many

TOKENS = torch.arange(12)[None] * 7 % 128
FAMILIES = ("Llama", "Qwen3Moe", "GptOss")


@pytest.fixture
def integrated():
    integration.register()
    yield
    integration.unregister()


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def from_files(family, folder):
    """Loaded, so that transformers knows how names in files differ from those in the model."""
    make_tiny(family).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("made", ["here", "loaded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_quantised_in_place_is_saved_and_loaded(family, made, tmp_path, integrated):
    model = make_tiny(family) if made == "here" else from_files(family, tmp_path / "plain")
    bs.quantize_(model, {"*.down_proj": "mxfp8", "*": "kbit4"}, scale="absmax", x_format="int8")
    model.save_pretrained(tmp_path / "q")
    again, found = AutoModelForCausalLM.from_pretrained(tmp_path / "q", output_loading_info=True)
    assert not any(found.values()), found
    assert torch.equal(logits(again), logits(model))


def test_a_model_that_was_loaded_into_is_saved_and_loaded(tmp_path, integrated):
    model = make_tiny("Llama")
    bs.quantize_(model, "kbit4", scale="absmax", x_format="int8")
    bs.save(model, tmp_path / "q")
    twin = make_tiny("Llama")
    bs.load_into(twin, tmp_path / "q")
    twin.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(logits(again), logits(model))


def x_formats(model):
    """What each packed layer quantises its inputs to."""
    return {
        name: layer.x_format
        for name, layer in model.named_modules()
        if isinstance(layer, bs.nn.Linear)
    }


def quantize_(model, format="kbit4", **arguments):
    bs.quantize_(model, format, scale="absmax", importance=None, **arguments)


def twice(model, first, second):
    """Nothing is left for the second call, whose x_format no layer gets."""
    quantize_(model, x_format=first)
    quantize_(model, x_format=second)


def then_optimize_(model, **arguments):
    head = arguments.pop("head", False)
    quantize_(model, **arguments)
    bs.optimize_(model, head=head)


def optimized_back(model):
    quantize_(model, x_format="int8")
    bs.optimize_(model, head=True, x_format=None)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda model: twice(model, "int8", None), "int8"),
        (lambda model: twice(model, None, "int8"), None),
        (then_optimize_, "int8"),
        (lambda model: then_optimize_(model, format="nvfp4", x_format="nvfp4"), "int8"),
        (lambda model: then_optimize_(model, x_format="int8", head=True), "int8"),
        (optimized_back, None),
    ],
    ids=["int8-none", "none-int8", "optimize", "nvfp4-optimize", "head", "optimized-back"],
)
def test_the_config_says_what_layers_quantise_inputs_to(
    change, wanted, tmp_path, integrated, capsys
):
    model = make_tiny("Llama")
    change(model)
    assert "x_format" not in capsys.readouterr().err
    assert set(x_formats(model).values()) == {wanted}
    model.save_pretrained(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert described.get("x_format") == wanted
    assert x_formats(AutoModelForCausalLM.from_pretrained(tmp_path)) == x_formats(model)


def by_parts(model):
    quantize_(model, where="*.mlp.*")
    quantize_(model, where="*.self_attn.*", x_format="int8")


@pytest.mark.parametrize(
    "change",
    [by_parts, lambda model: then_optimize_(model, head="mxfp8")],
    ids=["quantize_ twice", "a head of eight bits"],
)
def test_a_config_that_cannot_say_what_layers_quantise_inputs_to_says_nothing(change, capsys):
    model = make_tiny("Llama")
    change(model)
    assert capsys.readouterr().err.count("layers have different x_format (None, int8)") == 1
    assert model.config.quantization_config == {"quant_method": "blockscale", "version": 2}


def test_a_plain_module_has_no_config_to_warn_of(capsys):
    model = torch.nn.ModuleDict({name: torch.nn.Linear(64, 32) for name in "ab"})
    bs.quantize_(model, "kbit4", "a")
    bs.quantize_(model, "kbit4", "b", x_format="int8")
    assert set(x_formats(model).values()) == {None, "int8"}
    assert "x_format" not in capsys.readouterr().err


def write_by(way, family, tmp_path):
    """A folder in our dialect."""
    where = "*.experts" if way == "experts only" else None
    if way == "convert":
        make_tiny(family).save_pretrained(tmp_path / "plain")
        settings = Settings(bs.MXFP8, scale="absmax", dialect="blockscale")
        run_plan(plan_conversion(tmp_path / "plain", settings), tmp_path / "q")
        return tmp_path / "q"
    model = make_tiny(family)
    bs.quantize_(model, "mxfp8", where, scale="absmax")  # codes have the shape of the weight
    if way == "save":
        bs.save(model, tmp_path / "q", dialect="blockscale")
    else:
        model.save_pretrained(tmp_path / "q")
    return tmp_path / "q"


@pytest.mark.parametrize(
    ("way", "family"),
    [
        *((way, family) for way in ("save_pretrained", "save", "convert") for family in FAMILIES),
        ("experts only", "Qwen3Moe"),
        ("experts only", "GptOss"),
    ],
)
def test_plain_transformers_refuses_our_dialect(way, family, tmp_path):
    """An unknown quant_method is only a warning there, and missing weights are made up."""
    folder = write_by(way, family, tmp_path)
    described = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert described == {"quant_method": "blockscale", "version": 2}
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_plain_module_refuses_a_packed_state_dict():
    packed = bs.nn.Linear.from_linear(torch.nn.Linear(64, 32), bs.KBIT4)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        torch.nn.Linear(64, 32).load_state_dict(packed.state_dict(), strict=False)


def test_folders_of_version_1_are_read(tmp_path):
    tensors = {"a.weight": bs.quantize(torch.randn(8, 64), "kbit4"), "b.weight": torch.ones(3)}
    bs.save(tensors, tmp_path / "q", dialect="blockscale")
    stored = load_file(tmp_path / "q" / "model.safetensors")
    assert bytes(stored.pop("a.weight").tolist()) == b"kbit4"
    save_file(stored, tmp_path / "q" / "model.safetensors")
    listed = {"quant_method": "blockscale", "version": 1, "tensors": {"a.weight": "kbit4"}}
    (tmp_path / "q" / "config.json").write_text(json.dumps({"quantization_config": listed}))
    found = bs.load(tmp_path / "q")
    assert found["a.weight"] == tensors["a.weight"]
    assert found.keys() == tensors.keys()
