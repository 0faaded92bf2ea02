"""nn.Linear's state dicts: canonical, complete, and refused where they do not fit."""

import pytest
import torch

import blockscale as bs
from blockscale.layouts import canonical
from nn.layers import FIELDS, layer_of


def test_state_dicts_are_canonical(foreign):
    layer, x = layer_of(bs.KBIT4), torch.randn(3, 64)
    before = {name: part.clone() for name, part in layer.state_dict().items()}
    y = layer(x)
    after = layer.state_dict()
    assert layer.weight.layout != canonical(bs.KBIT4)
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    layer.load_state_dict(after)  # into a layer in use
    assert torch.equal(layer(x), y)


def test_names_in_a_state_dict(fmt):
    layer = layer_of(fmt, k=256)
    wanted = {"weight", "weight_codes", "weight_scale", "bias"}
    wanted |= {"weight_tensor_scale"} if fmt.has_tensor_scale else set()
    wanted |= {"weight_codebook"} if fmt.is_codebook else set()
    state = layer.state_dict()
    assert set(state) == wanted
    assert state["weight_codes"].dtype == state["weight_scale"].dtype == torch.uint8
    assert bs.format(bytes(state["weight"].tolist()).decode()).spec == fmt.spec


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_fills_a_fresh_layer(fmt, assign):
    layer, x = layer_of(fmt, k=256), torch.randn(3, 256)
    fresh = bs.nn.Linear(256, 32, fmt, device="meta" if assign else None)
    fresh.load_state_dict(layer.state_dict(), assign=assign)
    assert fresh.weight == layer.weight
    assert torch.equal(fresh(x), layer(x))


def test_saved_with_torch(tmp_path):
    layer = layer_of(bs.KBIT4)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    fresh = bs.nn.Linear(64, 32, bs.KBIT4)
    fresh.load_state_dict(torch.load(tmp_path / "layer.pt"))
    assert fresh.weight == layer.weight


def test_loading_writes_into_no_tensor_of_others():
    q = bs.quantize(torch.randn(32, 64), bs.NVFP4)
    codes = q.codes.clone()
    layer = bs.nn.Linear.from_qtensor(q)
    assert layer.weight_codes is q.codes
    layer.load_state_dict(layer_of(bs.NVFP4, bias=False).state_dict())
    assert torch.equal(q.codes, codes)
    assert not torch.equal(layer.weight_codes, codes)


def test_a_partial_load_keeps_the_rest():
    layer, other = layer_of(bs.KBIT4), layer_of(bs.KBIT4)
    before = layer.weight
    result = layer.load_state_dict({"bias": other.bias.detach()}, strict=False)
    assert sorted(result.missing_keys) == [f"weight_{field}" for field in sorted(FIELDS)]
    assert layer.weight == before
    assert torch.equal(layer.bias, other.bias)
    scale = other.state_dict()["weight_scale"]
    layer.load_state_dict({"weight_scale": scale}, strict=False)
    assert torch.equal(layer.weight_scale, scale)
    assert torch.equal(layer.weight_codes, before.codes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("weight_scale"), "Missing key.*weight_scale"),
        (lambda s: s.update(extra=torch.zeros(1)), "Unexpected key.*extra"),
        (
            lambda s: s.update(weight_codes=torch.zeros(32, 31, dtype=torch.uint8)),
            "size mismatch for weight_codes",
        ),
        (
            lambda s: s.update(weight_scale=s["weight_scale"].float()),
            r"weight_scale must be torch\.uint8, got torch\.float32",
        ),
        (
            lambda s: s.update(weight_tensor_scale=s["weight_tensor_scale"].bfloat16()),
            r"weight_tensor_scale must be torch\.float32, got torch\.bfloat16",
        ),
    ],
)
def test_bad_state_dicts_are_refused(change, message):
    state = layer_of(bs.NVFP4).state_dict()
    change(state)
    with pytest.raises(RuntimeError, match=message):
        layer_of(bs.NVFP4).load_state_dict(state)


def test_another_format_of_the_same_size_is_refused():
    state = layer_of(bs.MXFP8).state_dict()
    with pytest.raises(RuntimeError, match=r"saved as e4m3/32:e8m0, this .* e5m2/32"):
        layer_of(bs.MXFP8_E5M2).load_state_dict(state)
