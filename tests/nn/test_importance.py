"""What errors cost by column: measured on random ids, on batches of one's own, or given."""

import copy

import pytest
import torch

import blockscale as bs
from blockscale.nn import random_ids, widened

IDS = torch.arange(24).reshape(2, 12)
DOWN = "model.layers.0.mlp.down_proj"


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:  # columns that differ, as in a trained model
            torch.nn.init.normal_(parameter, mean=1.0, std=0.8)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture(params=["Qwen3Moe", "GptOss"])
def mixture(request):
    """Concatenated and interleaved halves; without and with biases."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{request.param}Config")(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=32,
        moe_intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )
    config._experts_implementation = "eager"
    model = getattr(transformers, f"{request.param}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def weights_of(model):
    return {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, bs.nn.Linear)
    }


def watched_inputs(model, name):
    """What reaches a module while the model reads IDS, in float64."""
    seen = []
    hook = model.get_submodule(name).register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].detach().double())
    )
    with torch.no_grad():
        model(IDS)
    hook.remove()
    return torch.cat([x.reshape(-1, x.shape[-1]) for x in seen])


# --- measuring ---


def test_the_mean_square_of_each_input_is_measured(llama):
    assert len(bs.nn.measure_importance(llama)) == 14  # seven in each layer
    found = bs.nn.measure_importance(llama, lambda m: (m(IDS[:1]), m(IDS[1:])), where="*")
    assert len(found) == 15
    for name in ("model.layers.0.self_attn.v_proj", "model.layers.1.mlp.down_proj", "lm_head"):
        expected = watched_inputs(llama, name).square().mean(0)
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], expected.float(), rtol=1e-5, atol=0)


def test_experts_are_measured_by_what_is_routed_to_them(mixture):
    found = bs.nn.measure_importance(mixture, lambda model: model(IDS))
    (name,) = {key.rpartition(".")[0] for key in found if key.endswith("experts.down_proj")}
    gate_up, down = found[f"{name}.gate_up_proj"], found[f"{name}.down_proj"]
    expected = watched_inputs(mixture, name).square().mean(0)
    torch.testing.assert_close(gate_up, expected.float(), rtol=1e-5, atol=0)
    assert down.shape == (4, 32)

    # An expert's second product is linear in what was measured: with down_proj one-hot, the output
    # of an expert *is* its input.
    experts = mixture.get_submodule(name)
    x = watched_inputs(mixture, name).float()
    with torch.no_grad():
        weight = experts.down_proj.zero_()
        for i in range(32):
            weight[:, i, i] = 1.0  # [e, k, n] and [e, n, k] alike
        if experts.has_bias:
            experts.down_proj_bias.zero_()
        index = torch.full((len(x), 2), 1)
        index[:, 1] = 2
        only_first = torch.tensor([[1.0, 0.0]]).expand(len(x), 2)
        out = experts(x, index, only_first)[:, :32]
    again = bs.nn.measure_importance(experts_only(experts), lambda m: m(x, index, only_first))
    torch.testing.assert_close(again["0.down_proj"][1], out.square().mean(0), rtol=1e-4, atol=1e-6)
    assert not again["0.down_proj"][0].any()  # nobody was sent there


def experts_only(experts):
    """A model that is nothing but a mixture."""
    model = torch.nn.ModuleList([experts])
    model.forward = lambda *inputs: experts(*inputs)
    return model


def test_columns_that_stay_zero_are_not_given_away():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32))
    x = torch.randn(5, 32)
    x[:, 3] = 0.0
    found = bs.nn.measure_importance(model, lambda m: m(x))["0"]
    assert 0 < found[3] < 1e-5 * found.mean()


def test_the_model_is_left_as_it_was(llama):
    llama.train()
    llama.model.layers[0].eval()
    modes = {name: module.training for name, module in llama.named_modules()}
    state = {name: value.clone() for name, value in llama.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    bs.nn.measure_importance(llama)
    assert torch.equal(torch.rand(3), expected)  # the global generator was not touched
    assert {name: module.training for name, module in llama.named_modules()} == modes
    assert all(torch.equal(value, state[name]) for name, value in llama.state_dict().items())
    assert not any(module._forward_pre_hooks for module in llama.modules())
    assert all(parameter.grad is None for parameter in llama.parameters())


def test_hooks_go_when_the_model_fails(llama):
    def fails(model):
        model(IDS)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        bs.quantize_(llama, bs.KBIT4, importance=fails)
    assert not any(module._forward_pre_hooks for module in llama.modules())
    assert not weights_of(llama)  # nothing was swapped


def test_a_model_that_needs_more_than_ids_says_what_to_do(llama):
    def forward(input_ids, more):
        raise AssertionError

    llama.model.forward = forward
    message = r"^LlamaForCausalLM does not run.*a function that runs it.*importance=None"
    with pytest.raises(RuntimeError, match=message):
        bs.quantize_(llama, bs.KBIT4)
    with pytest.raises(RuntimeError, match=message):
        bs.nn.measure_importance(llama)


def test_emulated_dtypes_are_computed_in_float32(llama, monkeypatch):
    monkeypatch.setattr(widened, "emulates_bfloat16", lambda device: True)
    llama.bfloat16()
    seen = []
    widen = widened._widen
    monkeypatch.setattr(widened, "_widen", lambda value: seen.append(widen(value)) or seen[-1])
    wide = bs.nn.measure_importance(llama, lambda model: model(IDS))
    assert len(seen) > 2 * 14
    assert {x.dtype for x in seen if isinstance(x, torch.Tensor)} <= {torch.float32, torch.bool}
    name = "model.layers.0.mlp.gate_proj"
    expected = watched_inputs(llama.float(), name).square().mean(0).float()
    torch.testing.assert_close(wide[name], expected, rtol=0.05, atol=0)


# --- quantize_ ---


def test_language_models_are_measured_on_random_ids_by_default(llama):
    importance = bs.nn.measure_importance(llama)
    model, again, given, plain = (copy.deepcopy(llama) for _ in range(4))
    report = bs.quantize_(model, bs.KBIT4)
    bs.quantize_(again, bs.KBIT4)
    bs.quantize_(given, bs.KBIT4, importance=importance)
    bs.quantize_(plain, bs.KBIT4, importance=None)
    assert weights_of(model) == weights_of(again) == weights_of(given)
    assert weights_of(model) != weights_of(plain)
    assert "by their inputs, measured on 2,048 random token ids, on cpu" in str(report)
    assert all(layer.weighted for layer in report.quantized)
    for name, weight in weights_of(model).items():
        w = llama.get_submodule(name).weight
        assert weight == bs.quantize(w, bs.KBIT4, scale="mse", importance=importance[name])
        costs = [
            ((w - each.dequantize()).square() * importance[name]).sum()
            for each in (weight, weights_of(plain)[name])
        ]
        assert costs[0] < costs[1]


def test_a_function_measures_on_batches_of_ones_own(llama):
    model = copy.deepcopy(llama)
    report = bs.quantize_(model, bs.NVFP4, importance=lambda m: m(IDS))
    found = bs.nn.measure_importance(llama, lambda m: m(IDS))
    name = "model.layers.1.mlp.down_proj"
    expected = bs.quantize(
        llama.get_submodule(name).weight, bs.NVFP4, scale="mse", importance=found[name]
    )
    assert weights_of(model)[name] == expected
    assert "measured on inputs that were given" in str(report)


def test_experts_are_quantised_with_their_importance(mixture):
    importance = bs.nn.measure_importance(mixture)
    before = {name: value.clone() for name, value in mixture.named_parameters()}
    report = bs.quantize_(mixture, bs.MXFP4)
    assert all(layer.weighted for layer in report.quantized)
    (name, experts), *_ = (
        (name, m) for name, m in mixture.named_modules() if isinstance(m, bs.nn.Experts)
    )
    down = before[f"{name}.down_proj"]
    if down.shape[-1] != 32:  # stored as [e, k, n]
        down = down.mT
    expected = bs.quantize(
        down.contiguous(), bs.MXFP4, scale="mse", importance=importance[f"{name}.down_proj"]
    )
    assert experts.down == expected


def test_other_models_have_plain_errors_and_the_report_says_so():
    torch.manual_seed(1)
    weight = torch.randn(32, 64)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False))
    model[0].weight.data = weight
    report = bs.quantize_(model, bs.KBIT4)
    assert model[0].weight == bs.quantize(weight, bs.KBIT4, scale="mse")
    assert "weigh the same: Sequential is no language model" in str(report)
    assert not report.quantized[0].weighted


def test_other_rules_measure_nothing(llama, monkeypatch):
    monkeypatch.setattr(random_ids, "track", lambda *args: pytest.fail("the model was run"))
    report = bs.quantize_(llama, bs.KBIT4, scale="absmax")
    assert report.importance == ""
    assert bs.quantize_(llama, bs.KBIT4).importance == ""  # all done already


def test_only_what_is_quantised_is_measured(llama):
    report = bs.quantize_(
        llama, bs.KBIT4, "*.down_proj", importance={"model.layers.0.mlp.down_proj": torch.ones(96)}
    )
    assert [layer.weighted for layer in report.quantized] == [True, False]
    assert "as given, in all but 1 of 2 weights" in str(report)


def test_a_layer_in_two_places_may_be_named_by_either():
    """The report has the first, and importance may come from a model that has the second alone."""
    shared = torch.nn.Linear(64, 32)
    columns = torch.logspace(-3, 3, 64)
    made = []
    for name in ("first", "second"):
        model = torch.nn.ModuleDict({"first": shared, "second": shared})
        (layer,) = bs.quantize_(model, bs.KBIT3, importance={name: columns}).quantized
        assert layer.weighted
        made.append(model["first"].weight)
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"importance": "text"}, TypeError, "must be 'random', None, tensors by name"),
        ({"importance": 3}, TypeError, "got 3"),
        ({"importance": {}, "scale": "absmax"}, ValueError, "scale is 'absmax'"),
        ({"importance": {"typo": torch.ones(64)}}, ValueError, "'typo', and no weight"),
        ({"importance": {"lm_head": torch.ones(65)}}, ValueError, r"must be \[64\], got \[65\]"),
        (
            {"importance": {DOWN: torch.full((96,), float("nan"))}},
            ValueError,
            f"importance of {DOWN} has NaN or Inf",
        ),
        ({"importance": {DOWN: -torch.ones(96)}}, ValueError, f"of {DOWN} has negative numbers"),
    ],
)
def test_mistakes_leave_the_model_as_it_was(llama, arguments, error, message):
    with pytest.raises(error, match=message):
        bs.quantize_(llama, bs.KBIT4, **arguments)
    assert not weights_of(llama)


def test_measured_numbers_that_are_not_finite_are_refused_by_name(llama):
    """Activations that overflow in a narrow dtype would weigh everything by NaN."""
    with torch.no_grad():
        llama.model.layers[0].mlp.up_proj.weight.fill_(float("inf"))
    with pytest.raises(ValueError, match=r"importance of model\.layers\.\S+ has NaN or Inf"):
        bs.nn.measure_importance(llama)


def test_measuring_draws_a_bar(llama, capsys):
    bs.nn.measure_importance(llama, progress=True)
    assert "measuring inputs on cpu" in capsys.readouterr().err


def test_measuring_needs_a_language_model_or_a_function():
    with pytest.raises(ValueError, match=r"Sequential is no language model.*pass a function"):
        bs.nn.measure_importance(torch.nn.Sequential(torch.nn.Linear(32, 32)))
