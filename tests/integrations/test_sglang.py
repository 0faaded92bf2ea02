"""Registration with SGLang, against a stand-in for the modules that it is found in."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import Checkpoint


class LinearBase(torch.nn.Module):
    pass


class QuantizationConfig:
    def __init__(self):
        self.packed_modules_mapping = {}


@pytest.fixture
def sglang(monkeypatch, tmp_path):
    """What SGLang's registry looks like from outside."""
    root = "sglang.srt"
    contents = {
        "sglang": {},
        root: {},
        f"{root}.layers": {},
        f"{root}.layers.linear": {"LinearBase": LinearBase},
        f"{root}.layers.quantization": {"QUANTIZATION_METHODS": {}},
        f"{root}.layers.quantization.base_config": {
            "LinearMethodBase": object,
            "QuantizationConfig": QuantizationConfig,
        },
        f"{root}.layers.quantization.unquant": {"UnquantizedLinearMethod": SimpleNamespace},
        f"{root}.server_args": {
            "get_global_server_args": lambda: SimpleNamespace(model_path=str(tmp_path / "q"))
        },
    }
    for name, members in contents.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "blockscale.integrations.sglang.config", raising=False)
    yield sys.modules[f"{root}.layers.quantization"].QUANTIZATION_METHODS
    sys.modules.pop("blockscale.integrations.sglang.config", None)


def test_the_method_is_registered_once(sglang):
    from blockscale.integrations.sglang import register

    register()
    first = sglang["blockscale"]
    register()
    assert sglang == {"blockscale": first}
    assert first.from_config({"quant_method": "blockscale"}).get_name() == "blockscale"


@pytest.mark.parametrize("asked", [None, "by the file", "by the user"])
def test_a_fused_layer_multiplies_what_the_loader_gave(sglang, tmp_path, monkeypatch, asked):
    from blockscale.integrations.sglang import register

    register()
    weights = {name: bs.quantize(torch.randn(32, 64), "nvfp4") for name in "qkv"}
    bs.save(
        {f"l.{name}_proj.weight": each for name, each in weights.items()},
        tmp_path / "q",
        dialect="blockscale",
    )
    if asked == "by the user":
        monkeypatch.setenv("BLOCKSCALE_X_FORMAT", "mxfp8")
    config = sglang["blockscale"].from_config(
        {"x_format": "mxfp8"} if asked == "by the file" else {}
    )
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    layer = LinearBase()
    method = config.get_quant_method(layer, "l.qkv_proj")
    with pytest.raises(ValueError, match="on one rank"):
        method.create_weights(layer, 64, [16, 16, 16], 64, 96, torch.float32)
    method.create_weights(layer, 64, [32, 32, 32], 64, 96, torch.float32)
    files = Checkpoint(tmp_path / "q").files
    parameters = dict(layer.named_parameters())
    for entry in files.entries:  # as the loader of a model of SGLang's does
        _, member, leaf = entry.split(".")
        parameter = parameters[leaf]
        parameter.weight_loader(parameter, files.tensor(entry), member[0])
    method.process_weights_after_loading(layer)
    x, whole = torch.randn(3, 64), bs.cat(list(weights.values())).prepare()
    expected = bs.linear(x, whole, x_format=asked and "mxfp8")
    assert torch.equal(method.apply(layer, x), expected)
    assert config.get_quant_method(LinearBase(), "l.other").__class__ is SimpleNamespace
