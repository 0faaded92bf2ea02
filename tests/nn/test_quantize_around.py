"""quantize_ on layers with something around their calls: hooks, another forward."""

import copy
import functools
import types

import pytest
import torch
from torch.nn.utils import prune

import blockscale as bs
from nn.blocks import formats_of
from tiny_models import make_tiny

X = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))


def two_layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32))


def reasons(report):
    return {layer.name: layer.reason for layer in report.kept}


# --- another forward ---


def test_a_layer_whose_forward_was_replaced_is_kept():
    model = two_layers()
    plain = model[0]
    plain.forward = lambda x: 2 * torch.nn.functional.linear(x, plain.weight, plain.bias)
    report = bs.quantize_(model, bs.MXFP8)
    assert reasons(report) == {
        "0": "its forward was replaced, and may not compute what Linear does"
    }
    assert model[0] is plain


def test_a_forward_of_no_module_is_seen():
    """Methods of torch's own types do not say where they are from."""
    model = two_layers()
    model[0].forward = functools.partial(torch.Tensor.neg)
    assert list(reasons(bs.quantize_(model, bs.MXFP8))) == ["0"]


def test_experts_whose_forward_was_replaced_are_kept():
    pytest.importorskip("transformers", minversion="5.16")
    model = make_tiny("Qwen3Moe")
    experts = model.model.layers[0].mlp.experts
    experts.forward = types.MethodType(
        lambda self, *given: 2 * type(self).forward(self, *given), experts
    )
    found = reasons(bs.quantize_(model, bs.MXFP8, importance=None))
    assert "forward was replaced" in found["model.layers.0.mlp.experts.down_proj"]
    assert model.model.layers[0].mlp.experts is experts


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "change",
    [
        torch.nn.utils.weight_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
)
def test_a_weight_that_a_hook_computes_is_kept(change):
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(64, 64), "lm_head": torch.nn.Linear(64, 32)})
    change(model["lm_head"])
    report = bs.quantize_(model, bs.MXFP8, head=True)
    assert "computed by a hook" in reasons(report)["lm_head"]
    assert model["lm_head"](X).shape == (3, 32)


def test_hooks_on_a_state_dict_keep_the_layer():
    model = two_layers()
    model[0].register_state_dict_post_hook(lambda *given: None)
    assert "hooks on its state dict" in reasons(bs.quantize_(model, bs.MXFP8))["0"]


# --- accelerate ---


def test_accelerates_hooks_go_with_the_layer():
    accelerate = pytest.importorskip("accelerate")
    model = two_layers()
    expected = copy.deepcopy(model)
    bs.quantize_(expected, bs.MXFP8)
    accelerate.dispatch_model(model, {"0": "cpu", "1": "cpu"}, force_hooks=True)
    hook = model[0]._hf_hook
    bs.quantize_(model, bs.MXFP8)
    assert list(formats_of(model)) == ["0", "1"]
    assert model[0]._hf_hook is hook
    assert torch.equal(model(X), expected(X))


def test_a_model_that_accelerate_has_left_is_quantised():
    """The method of the class then stands in the instance."""
    hooks = pytest.importorskip("accelerate.hooks")
    model = two_layers()
    hooks.add_hook_to_module(model[0], hooks.ModelHook())
    hooks.remove_hook_from_module(model[0])
    assert "forward" in model[0].__dict__
    bs.quantize_(model, bs.MXFP8)
    assert list(formats_of(model)) == ["0", "1"]


def test_another_forward_beneath_accelerates_is_seen():
    hooks = pytest.importorskip("accelerate.hooks")
    model = two_layers()
    model[0].forward = torch.neg
    hooks.add_hook_to_module(model[0], hooks.ModelHook())
    assert "forward was replaced" in reasons(bs.quantize_(model, bs.MXFP8))["0"]


# --- hooks ---


def test_hooks_of_calls_go_with_the_layer_and_their_handles_remove_them():
    model = two_layers()
    layer, seen = model[0], []
    handles = [
        layer.register_forward_pre_hook(lambda m, given: seen.append("before")),
        layer.register_forward_pre_hook(
            lambda m, given, named: seen.append("before, named"), with_kwargs=True
        ),
        layer.register_forward_hook(lambda m, given, y: 2 * y),
        layer.register_forward_hook(
            lambda m, given, named, y: seen.append("after"), with_kwargs=True, always_call=True
        ),
        layer.register_full_backward_pre_hook(lambda m, dy: seen.append("dy")),
        layer.register_full_backward_hook(lambda m, dx, dy: seen.append("dx")),
    ]
    bs.quantize_(model, bs.MXFP8)
    del layer
    x = X.clone().requires_grad_()
    y = model[0](x)
    assert torch.equal(y, 2 * model[0].forward(X))
    y.sum().backward()
    assert seen == ["before", "before, named", "after", "dy", "dx"]
    with pytest.raises(ValueError, match="k=63"):
        model[0](X[:, :-1])
    assert seen[5:] == ["before", "before, named", "after"]  # always called
    for handle in handles:
        handle.remove()
    seen.clear()
    assert torch.equal(model[0](X), model[0].forward(X))
    assert not seen


def test_hooks_of_experts_go_with_them():
    pytest.importorskip("transformers", minversion="5.16")
    model, seen = make_tiny("Qwen3Moe"), []
    experts = model.model.layers[0].mlp.experts
    experts.register_forward_hook(lambda module, *_: seen.append(type(module)))
    bs.quantize_(model, bs.MXFP8, importance=None)
    model(torch.arange(4)[None])
    assert seen == [bs.nn.Experts]
