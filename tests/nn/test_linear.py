"""nn.Linear: its product, and that casts, moves and copies leave its bytes as they are."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import blockscale as bs
from bounds import branch_bound, cast_bound
from nn.layers import FIELDS, FORMATS, layer_of

# --- what it computes ---


@pytest.mark.parametrize("bias", [True, False])
def test_forward_is_the_product(fmt, bias):
    source, x = torch.nn.Linear(256, 48, bias=bias), torch.randn(2, 5, 256)
    layer = bs.nn.Linear.from_linear(source, fmt, scale="absmax")
    w = bs.quantize(source.weight, fmt).dequantize().double()
    rows, offset = x.flatten(0, 1).double(), 0 if source.bias is None else source.bias.double()
    exact = rows @ w.T + offset
    bound = branch_bound(rows, w, exact, x_dtype=x.dtype, bias=source.bias)
    error = (layer(x).flatten(0, 1).double() - exact).abs()
    assert (error <= bound + cast_bound(exact, x.dtype)).all()
    assert layer(x).shape == (2, 5, 48)


def test_scales_are_searched_by_default():
    source = torch.nn.Linear(64, 32)
    layer = bs.nn.Linear.from_linear(source, "nvfp4")
    assert layer.weight == bs.quantize(source.weight, bs.NVFP4, scale="mse")
    assert torch.equal(layer.dequantize(), layer.weight.dequantize())
    assert layer.dequantize(torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("x_format", [bs.MXFP8, "int8"], ids=str)
def test_blocks_of_activations_must_fit_when_the_layer_is_made(x_format):
    with pytest.raises(ValueError, match=f"{x_format} needs x's last dimension divisible by 32"):
        bs.nn.Linear(48, 32, bs.NVFP4, x_format=x_format)


@pytest.mark.parametrize("x_format", [bs.MXFP8, "nvfp4", "int8"], ids=str)
def test_activations_are_quantized_if_asked(x_format):
    layer, x = layer_of(bs.KBIT4, x_format=x_format), torch.randn(3, 64)
    expected = bs.linear(x, layer.weight.prepare(), layer.bias, x_format=x_format)
    assert torch.equal(layer(x), expected)
    assert not torch.equal(layer(x), bs.linear(x, layer.weight.prepare(), layer.bias))


def test_a_fitted_codebook_is_kept():
    source = torch.nn.Linear(64, 32)
    fitted = bs.fit_codebook(source.weight, 3)
    layer = bs.nn.Linear.from_linear(source, fitted)
    assert layer.weight_codebook.tolist() == list(fitted.codebook)
    fresh = bs.nn.Linear(64, 32, bs.KBIT3)  # which has another table until it is loaded
    fresh.load_state_dict(layer.state_dict())
    x = torch.randn(3, 64)
    assert torch.equal(fresh(x), layer(x))


def test_the_bias_stays_the_parameter_it_was():
    source = torch.nn.Linear(64, 32, dtype=torch.bfloat16)
    source.bias.requires_grad_(requires_grad=False)
    layer = bs.nn.Linear.from_linear(source, bs.NVFP4)
    assert layer.bias is source.bias
    assert layer.bias.dtype == torch.bfloat16
    assert layer(torch.randn(3, 64)).dtype == torch.float32


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_blank_layer_gives_zeros(format):
    layer = bs.nn.Linear(256, 32, format)
    assert not layer(torch.randn(3, 256)).any()
    assert not layer.dequantize().any()


def test_it_says_what_it_is():
    layer = layer_of(bs.NVFP4, x_format=bs.MXFP8)
    assert repr(layer) == (
        "Linear(in_features=64, out_features=32, bias=True, format=nvfp4, x_format=mxfp8)"
    )


# --- casts, moves, copies ---


@pytest.mark.parametrize(
    "cast",
    [
        lambda m: m.to(torch.bfloat16),
        lambda m: m.half(),
        lambda m: m.double().float(),
        lambda m: m.type(torch.float16),
        lambda m: torch.nn.Sequential(m).to(torch.bfloat16)[0],
        lambda m: m.to("cpu", torch.float16),
    ],
)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_cast_reaches_the_bias_alone(format, cast):
    layer = layer_of(format)
    before, bias = layer.weight, layer.bias.detach().clone()
    parts = [
        None if part is None else part.clone() for part in map(before.__getattribute__, FIELDS)
    ]
    changed = cast(layer)
    for field, part in zip(FIELDS, parts, strict=True):
        now = getattr(changed, f"weight_{field}")
        assert (now is None) == (part is None)
        if part is not None:
            assert now.dtype == part.dtype
            assert torch.equal(now, part)
    assert torch.equal(changed.bias, bias.to(changed.bias.dtype))


def test_a_move_takes_everything():
    layer = layer_of(bs.KBIT4).to("meta")
    assert {each.device.type for each in [*layer.buffers(), *layer.parameters()]} == {"meta"}
    assert layer.weight_tensor_scale.dtype == layer.weight_codebook.dtype == torch.float32
    assert layer.to_empty(device="cpu").weight.device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_and_back(fmt):
    layer, x = layer_of(fmt, k=256), torch.randn(3, 256)
    before = copy.deepcopy(layer.weight)
    y = layer(x)
    far = layer.cuda()(x.cuda())
    assert layer.weight.layout == layer.weight.prepare().layout
    torch.testing.assert_close(far.cpu(), y)
    assert layer.cpu().weight == before
    torch.testing.assert_close(layer(x), y)


def test_copies_are_apart():
    layer, x = layer_of(bs.KBIT4), torch.randn(3, 64)
    y = layer(x)
    twin = copy.deepcopy(layer)
    twin.weight_codes.zero_()
    assert torch.equal(layer(x), y)
    assert not torch.equal(twin(x), y)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_pickling(format):
    layer, x = layer_of(format, x_format=bs.MXFP8), torch.randn(3, 64)
    for used in (False, True):
        twin = pickle.loads(pickle.dumps(layer))
        assert torch.equal(twin(x), layer(x)), used
        assert twin.weight.format == layer.weight.format


def test_another_process_gets_it():
    layer, x = layer_of(bs.KBIT4).requires_grad_(requires_grad=False), torch.randn(3, 64)
    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        y = pool.apply(torch.nn.Module.__call__, (layer, x))
    assert torch.equal(y, layer(x))


def test_shared_memory():
    layer = layer_of(bs.KBIT4).share_memory()
    assert all(getattr(layer, f"weight_{field}").is_shared() for field in FIELDS)


# --- preparing ---


def test_the_first_use_packs_and_keeps_only_that(foreign):
    layer, x = layer_of(bs.KBIT4), torch.randn(3, 64)
    before = layer.weight
    y = layer(x)
    assert layer.weight.layout == foreign(bs.KBIT4, "cpu") != before.layout
    assert layer.weight == before
    held = layer.weight_codes
    assert torch.equal(layer(x), y)
    assert layer.weight_codes is held  # packed once


def test_casts_and_pickles_of_prepared_layers(foreign):
    layer, x = layer_of(bs.KBIT4), torch.randn(3, 64)
    y = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.double().float()):
        assert twin.weight.layout == foreign(bs.KBIT4, "cpu")
        assert torch.equal(twin(x), y)


def test_a_first_use_for_inference_allows_training(foreign):
    layer = layer_of(bs.NVFP4)
    with torch.inference_mode():
        layer(torch.randn(3, 64))
    x = torch.randn(3, 64, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.any()


def test_threads_may_race_for_the_first_use(foreign):
    layer, x = layer_of(bs.NVFP4, n=256, k=256), torch.randn(1, 256)
    expected = copy.deepcopy(layer)(x)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: layer(x), range(16)))
    assert all(torch.equal(y, expected) for y in results)


# --- training ---


def test_only_the_bias_is_a_parameter():
    assert [name for name, _ in layer_of(bs.NVFP4).named_parameters()] == ["bias"]


def test_an_adapter_and_the_bias_train_on_top():
    layer = layer_of(bs.NVFP4, n=16)
    before, bias = copy.deepcopy(layer.weight), layer.bias.detach().clone()
    embed, down, up = torch.nn.Linear(64, 64), torch.nn.Linear(64, 4), torch.nn.Linear(4, 16)
    torch.nn.init.zeros_(up.weight)
    parts = torch.nn.ModuleList([layer, embed, down, up])
    optimiser = torch.optim.Adam(parts.parameters(), lr=1e-2)
    x, target, losses = torch.randn(32, 64), torch.randn(32, 16), []
    for _ in range(20):
        h = embed(x)
        loss = (layer(h) + up(down(h)) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert layer.weight == before
    assert not torch.equal(layer.bias, bias)


# --- errors ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bs.nn.Linear(100, 32, bs.NVFP4), "needs k divisible by 16, got 100"),
        (lambda: bs.nn.Linear(64, 32, "nvpf4"), "did you mean 'nvfp4'"),
        (lambda: bs.nn.Linear(48, 32, bs.NVFP4, x_format=bs.MXFP8), "divisible by 32, got 48"),
        (
            lambda: bs.nn.Linear.from_qtensor(bs.quantize(torch.randn(2, 32, 64), bs.NVFP4)),
            r"needs a weight \[n, k\]",
        ),
        (
            lambda: bs.nn.Linear.from_qtensor(
                bs.quantize(torch.randn(32, 64), bs.NVFP4, tensor_scale="row")
            ),
            "with one tensor scale",
        ),
        (
            lambda: bs.nn.Linear.from_qtensor(
                bs.quantize(torch.randn(32, 64), bs.NVFP4), torch.zeros(31)
            ),
            r"bias must be \[32\], got \[31\]",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
