"""quantize_ on models that have adapters."""

import pytest
import torch

import blockscale as bs
from nn.blocks import formats_of
from tiny_models import make_tiny


def reasons(report):
    return {layer.name: layer.reason for layer in report.kept}


class Adapted(torch.nn.Module):
    """As peft wraps a layer."""

    adapter_layer_names = ("lora_A", "lora_B")

    def __init__(self, layer, rank=32):
        super().__init__()
        self.base_layer = layer
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(64, rank, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, 64, bias=False)})


def test_adapters_stay_plain_and_the_layer_inside_is_quantised():
    model = torch.nn.ModuleDict({"q_proj": Adapted(torch.nn.Linear(64, 64))})
    report = bs.quantize_(model, bs.MXFP8)
    assert list(formats_of(model)) == ["q_proj.base_layer"]
    assert reasons(report) == dict.fromkeys(
        ["q_proj.lora_A.default", "q_proj.lora_B.default"], "an adapter of q_proj"
    )


def test_a_layer_with_an_adapter_keeps_its_name_for_patterns():
    layers = {name: Adapted(torch.nn.Linear(64, 64)) for name in ("q_proj", "o_proj", "lm_head")}
    model = torch.nn.ModuleDict(layers)
    report = bs.quantize_(model, {"*.q_proj": bs.MXFP8, "*.base_layer": bs.NVFP4})
    assert formats_of(model) == {"q_proj.base_layer": bs.MXFP8, "o_proj.base_layer": bs.NVFP4}
    assert reasons(report)["lm_head.base_layer"] == "kept by default: *.lm_head"


PEFT = {
    "lora": {"target_modules": "all-linear"},
    "a whole head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "dora": {"target_modules": ["q_proj"], "use_dora": True},
    "experts": {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]},
}


@pytest.mark.filterwarnings("ignore")  # of other libraries, which have many
@pytest.mark.parametrize("options", PEFT.values(), ids=PEFT)
def test_a_model_of_peft_trains_as_before(options):
    pytest.importorskip("transformers", minversion="5.16")
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=32, task_type="CAUSAL_LM", init_lora_weights=False, **options)
    model = peft.get_peft_model(make_tiny("Qwen3Moe"), config)
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    bs.quantize_(model, bs.MXFP8, importance=None)
    assert [name for name, each in model.named_parameters() if each.requires_grad] == trained
    assert formats_of(model)
    tokens = torch.arange(12)[None]
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert all(model.get_parameter(name).grad is not None for name in trained)


def test_fused_projections_with_adapters_share_a_tensor_scale():
    names = ("q_proj", "k_proj", "v_proj")
    model = torch.nn.ModuleDict({name: Adapted(torch.nn.Linear(64, 64)) for name in names})
    bs.quantize_(model, bs.NVFP4)
    scales = {model[name].base_layer.weight.tensor_scale.item() for name in names}
    assert len(scales) == 1


def test_siblings_of_anybodys_base_layer_are_quantised():
    model = torch.nn.ModuleDict(
        {"base_layer": torch.nn.Linear(64, 64), "other": torch.nn.Linear(64, 64)}
    )
    bs.quantize_(model, bs.MXFP8)
    assert set(formats_of(model)) == {"base_layer", "other"}
