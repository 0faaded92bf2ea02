"""LoRA of peft on packed layers."""

import copy

import pytest
import torch

import blockscale as bs

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402

from blockscale.integrations.peft import LoraLinear, register, unregister  # noqa: E402
from bounds import roundings  # noqa: E402
from tiny_models import make_tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOKENS = torch.arange(24).reshape(2, 12) * 5 % 128


def packed(format=bs.NVFP4, name="Llama"):
    torch.manual_seed(0)
    model = make_tiny(name)
    bs.quantize_(model, format, scale="absmax")
    return model


def adapted(model=None, targets="all-linear", **options):
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM", **options)
    return get_peft_model(model or packed(), config)


def loss_of(model, tokens=TOKENS):
    return model(input_ids=tokens, labels=tokens).loss


def train(model, steps=8, dtype=None):
    """The losses; dtype: autocast's."""
    trained = [each for each in model.parameters() if each.requires_grad]
    optimiser, losses = torch.optim.AdamW(trained, lr=1e-2), []
    for _ in range(steps):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = loss_of(model)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


def bytes_of(model):
    """As files have them, whatever the layout is."""
    return {name: each.clone() for name, each in model.state_dict().items() if "weight_" in name}


def near(y, expected, layer, x):
    """Two float32 ways to the same sums. Each rounds a term at most so often: once for every sum
    over k and r, and a few times for norms and scales."""
    down, up = (part["default"].weight.abs() for part in (layer.lora_A, layer.lora_B))
    whole = layer.base_layer.dequantize().abs() + layer.scaling["default"] * (up @ down)
    lengths, stretch = layer.lora_magnitude_vector, 1.0
    if "default" in lengths:
        changed = layer.base_layer.dequantize() + layer.get_delta_weight("default")
        stretch = 1 + lengths["default"].weight / changed.norm(dim=1)
    size = x.abs() @ whole.T * stretch
    count = 2 * (layer.in_features + layer.r["default"] + 16)
    assert ((y - expected).abs() <= roundings(count, size)).all()


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]], ids=str)
def test_adapters_are_put_on_packed_layers(targets):
    model = adapted(targets=targets)
    wanted = PROJECTIONS if isinstance(targets, str) else targets
    found = {name.rpartition(".")[2] for name, m in model.named_modules() if type(m) is LoraLinear}
    assert found == set(wanted)  # and not the head
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert len(trained) == 2 * 2 * len(wanted)
    assert all("lora_" in name for name in trained)


@pytest.mark.parametrize("format", [bs.NVFP4, bs.KBIT4, bs.MXFP8], ids=str)
def test_training_lowers_the_loss_and_keeps_the_bytes(format):
    model = adapted(packed(format))
    before = bytes_of(model)
    with torch.no_grad():
        assert torch.equal(loss_of(model), loss_of(packed(format)))  # adapters begin as nothing
    losses = train(model)
    assert losses[-1] < 0.8 * losses[0]
    after = bytes_of(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_adapters_beside_layers_that_stayed_as_they_were():
    torch.manual_seed(0)
    model = make_tiny("Llama")
    bs.quantize_(model, bs.NVFP4, where="*.mlp.*", scale="absmax")
    kinds = {type(m).__name__ for m in adapted(model).modules() if hasattr(m, "lora_A")}
    assert kinds == {"LoraLinear", "Linear"}


def test_a_reloaded_adapter_gives_the_same_bits(tmp_path):
    model = adapted()
    train(model, steps=2)
    model.eval().save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    again = PeftModel.from_pretrained(packed(), tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)


def test_gradients_of_parts_add_up():
    model = adapted()
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    apart = []
    for some in TOKENS.chunk(2):
        loss_of(model, some).backward()
        apart.append({name: each.grad for name, each in trained.items()})
        model.zero_grad()
    for some in TOKENS.chunk(2):
        loss_of(model, some).backward()
    for name, each in trained.items():
        assert torch.equal(each.grad, apart[0][name] + apart[1][name])


def test_checkpointed_layers_have_the_same_gradients():
    plain, saving = adapted(), adapted()
    saving.enable_input_require_grads()
    saving.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for model in (plain.train(), saving.train()):
        loss_of(model).backward()
    pairs = zip(plain.named_parameters(), saving.named_parameters(), strict=True)
    compared = [torch.equal(a.grad, b.grad) for (_, a), (_, b) in pairs if a.requires_grad]
    assert len(compared) == 2 * 2 * len(PROJECTIONS)
    assert all(compared)


def test_autocast_decides_the_dtype_of_packed_layers():
    layer, x = bs.nn.Linear.from_linear(torch.nn.Linear(64, 32), bs.NVFP4), torch.randn(3, 64)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, layer(x.bfloat16()))
    model = adapted()
    losses = train(model, steps=4, dtype=torch.bfloat16)
    assert losses[-1] < losses[0]
    assert all(each.dtype == torch.float32 for each in model.parameters() if each.requires_grad)


def test_several_adapters_and_none():
    model = adapted()
    train(model, steps=2)
    model.eval()
    model.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        learnt = model(TOKENS).logits
        model.set_adapter("other")
        assert torch.equal(model(TOKENS).logits, packed()(TOKENS).logits)
        model.set_adapter("default")
        assert torch.equal(model(TOKENS).logits, learnt)
        with model.disable_adapter():
            assert torch.equal(model(TOKENS).logits, packed()(TOKENS).logits)
        layer = next(m for m in model.modules() if isinstance(m, LoraLinear))
        x = torch.randn(2, layer.in_features)
        mixed = layer(x, adapter_names=["default", "__base__"])
        near(mixed[:1], layer(x[:1]), layer, x[:1])
        assert torch.equal(mixed[1:], layer.base_layer(x)[1:])


def test_merging_says_what_it_costs_and_can_be_undone(logged):
    model = adapted()
    train(model)
    model.eval()
    with torch.no_grad():
        apart = model(TOKENS).logits
    before = bytes_of(model)
    layer = next(m for m in model.modules() if isinstance(m, LoraLinear))
    change = layer.get_delta_weight("default").detach()
    wanted = layer.base_layer.dequantize() + change
    with pytest.warns(UserWarning, match="to nvfp4.* a second time"):
        model.merge_adapter()
    assert "of the change" in str(logged)
    expected = bs.quantize(wanted, bs.NVFP4, scale="mse")
    assert layer.base_layer.weight == expected
    with torch.no_grad():
        assert not torch.equal(model(TOKENS).logits, apart)
    model.unmerge_adapter()
    after = bytes_of(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.warns(UserWarning, match="a second time"):
        plain = model.merge_and_unload()
    assert not any(isinstance(m, LoraLinear) for m in plain.modules())
    assert any(isinstance(m, bs.nn.Linear) for m in plain.modules())


def biased_layer(bias):
    """An adapter with a bias of its own on one layer, whose numbers are all at random."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=bias), torch.nn.LayerNorm(48))
    bs.quantize_(model, bs.MXFP8)
    config = LoraConfig(r=4, target_modules=["0"], lora_bias=True, lora_alpha=12)
    model = get_peft_model(model, config).eval()
    layer = next(m for m in model.modules() if isinstance(m, LoraLinear))
    for parameter in (*layer.lora_A.parameters(), *layer.lora_B.parameters()):
        torch.nn.init.normal_(parameter)
    return model, layer


@pytest.mark.filterwarnings("ignore:merging quantises")
def test_the_bias_of_an_adapter_is_merged_too():
    model, layer = biased_layer(bias=True)
    zeros, before = torch.zeros(1, 64), layer.base_layer
    with torch.no_grad():
        apart = model(zeros)
        model.merge_adapter()
        torch.testing.assert_close(model(zeros), apart)
        model.unmerge_adapter()
    assert layer.base_layer is before


def test_the_bias_of_an_adapter_needs_one_to_be_merged_into():
    model, layer = biased_layer(bias=False)
    before = layer.base_layer
    with pytest.raises(ValueError, match="keep the adapter apart"):
        model.merge_adapter()
    assert layer.base_layer is before
    assert not layer.merged


@pytest.mark.filterwarnings("ignore:merging quantises")
def test_hooks_of_a_layer_see_it_merged_and_unmerged():
    model = adapted(targets=["q_proj"])
    seen = []
    layer = next(m for m in model.modules() if isinstance(m, LoraLinear))
    handle = layer.base_layer.register_forward_hook(lambda *_: seen.append(layer.merged))
    with torch.no_grad():
        for step in (model.merge_adapter, model.unmerge_adapter, handle.remove):
            step()
            model(TOKENS)
    assert seen == [True, False]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_dora_trains_lengths_of_rows(dropout):
    """It begins as nothing, and computes what the decoded layer with peft's own DoRA does."""
    model = adapted(use_dora=True, lora_dropout=dropout)
    plain = packed()
    with torch.no_grad():
        assert torch.equal(model.eval()(TOKENS).logits, plain(TOKENS).logits)
    model.train()
    losses = train(model, steps=6)
    assert losses[-1] < losses[0]
    layer = next(m for m in model.eval().modules() if isinstance(m, LoraLinear))
    dense = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
    dense.weight = torch.nn.Parameter(layer.base_layer.dequantize())
    config = LoraConfig(r=4, target_modules=["0"], use_dora=True)
    twin = get_peft_model(torch.nn.Sequential(dense), config).eval()
    theirs = next(m for m in twin.modules() if hasattr(m, "lora_A"))
    for part in ("lora_A", "lora_B", "lora_magnitude_vector"):
        getattr(theirs, part).load_state_dict(getattr(layer, part).state_dict())
    x = torch.randn(5, layer.in_features)
    with torch.no_grad():
        wanted = layer._with_adapter("default", layer.base_layer.dequantize())
        near(layer(x), twin(x), layer, x)
        near(x @ wanted.T, twin(x), layer, x)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"init_lora_weights": "pissa"}, "initialise it on the unquantised model"),
        ({"init_lora_weights": "olora"}, "initialise it on the unquantised model"),
    ],
)
def test_what_needs_the_weight_as_numbers_is_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        adapted(**options)


@pytest.mark.parametrize("safe_merge", [False, True])
def test_merging_into_layers_that_were_packed_under_their_adapters_is_refused(safe_merge):
    """These layers are peft's, which adds to the weight."""
    model = adapted(make_tiny("Llama"))
    bs.quantize_(model, bs.NVFP4, scale="absmax")
    with pytest.raises(AttributeError, match="merge it into the unquantised model and quantise"):
        model.merge_and_unload(safe_merge=safe_merge)


def test_peft_forgets():
    model = packed()
    unregister()
    try:
        with pytest.raises(ValueError, match="is not supported"):
            adapted(copy.deepcopy(model), targets=["q_proj"])
    finally:
        register()
    assert any(isinstance(m, LoraLinear) for m in adapted(model).modules())
