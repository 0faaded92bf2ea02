"""Our bytes beside other libraries', where these install. Every difference has a reason here."""

import pytest
import torch

import blockscale as bs

pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES = {
    "gaussian": lambda: torch.randn(256, 256),
    "bfloat16": lambda: torch.randn(256, 256).bfloat16().float(),
    "many binades": lambda: torch.randn(256, 256) * torch.exp2(torch.randint(-30, 30, (256, 1))),
    "heavy tails": lambda: torch.distributions.StudentT(2.0).sample((256, 256)),
    "ties": lambda: torch.randint(-48, 49, (256, 256)) / 8,
}


@pytest.fixture(params=SAMPLES)
def x(request):
    return SAMPLES[request.param]().contiguous()


def codes_of(q):
    return q.layout.unpack_codes(q.codes, q.format, q.shape)


def nibbles(packed):
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def values_of(codes):
    return torch.tensor(bs.NVFP4.element.values)[codes.long()]


# --- torchao ---


@pytest.fixture
def torchao():
    return pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")


@pytest.mark.parametrize("rule", ["floor", "rceil", "even"])
@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("mxfp4", torch.float4_e2m1fn_x2),
        ("mxfp6_e2m3", "fp6_e2m3"),
        ("mxfp6_e3m2", "fp6_e3m2"),
        ("mxfp8", torch.float8_e4m3fn),
        ("mxfp8_e5m2", torch.float8_e5m2),
    ],
)
def test_torchao_mx(torchao, x, name, element, rule):
    mode = torchao.ScaleCalculationMode(rule)
    scale, data = torchao.to_mx(x, element, 32, mode)
    q = bs.quantize(x, name, scale=rule)
    filled = x.unflatten(-1, (-1, 32)).abs().amax(-1) > 0  # a block of zeros has any scale
    assert torch.equal(scale.view(torch.uint8).reshape(q.scale.shape)[filled], q.scale[filled])
    data = data.view(torch.uint8)
    packed_alike = data.shape == q.codes.shape  # torchao keeps 6-bit codes one to a byte
    ours = q.codes if packed_alike else codes_of(q)
    assert torch.equal(data, ours)


def test_torchao_blocked_scales(torchao):
    utils = pytest.importorskip("torchao.prototype.mx_formats.utils")
    for rows, columns in ((128, 4), (256, 16), (200, 12), (64, 8)):
        q = bs.quantize(torch.randn(rows, columns * 16), bs.NVFP4)
        theirs = utils.to_blocked(q.scale)
        assert torch.equal(theirs.flatten(), bs.layouts.blocked_scales(q))


def test_torchao_nvfp4(torchao, x):
    """Two differences: torchao's smallest scale is 2^-6, the smallest normal, where ours is 2^-9;
    and it multiplies by a rounded reciprocal, so that a code may differ beside a tie.
    """
    nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    q = bs.quantize(x, bs.NVFP4)
    scale, packed = nvfp4.nvfp4_quantize(x, 16, q.tensor_scale)
    scale = scale.view(torch.uint8).reshape(q.scale.shape)
    assert torch.equal(scale, q.scale.clamp(min=8))
    theirs, ours = nibbles(packed), codes_of(q)
    differ = values_of(theirs) != values_of(ours)
    normal = (q.scale >= 8).repeat_interleave(16, -1)
    assert_beside_a_tie(x, q, differ & normal)


def assert_beside_a_tie(x, q, differ):
    """Where codes differ, the quotient lies within a few float32 steps of a rounding boundary."""
    step = q.scale.view(torch.float8_e4m3fn).double() * q.tensor_scale.double()
    quotient = (x.double() / step.repeat_interleave(16, -1)).abs()[differ]
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.float64)
    distance = ((quotient[:, None] - bounds) / bounds).abs().amin(-1)
    assert (distance < 4 * 2.0**-23).all()


# --- ModelOpt ---


@pytest.fixture
def modelopt():
    return pytest.importorskip("modelopt.torch.quantization.qtensor")


def test_modelopt_nvfp4(modelopt, x):
    """ModelOpt divides amax once, by 6 g: a scale differs only where that falls beside a tie."""
    q = bs.quantize(x, bs.NVFP4)
    theirs, scale, second = modelopt.NVFP4QTensor.quantize(
        x.clone(), 16, weights_scaling_factor_2=q.tensor_scale.clone()
    )
    assert second == q.tensor_scale
    amax = x.unflatten(-1, (-1, 16)).abs().amax(-1)
    same = scale.view(torch.uint8) == q.scale
    other = ~same & (amax > 0)
    wanted = (amax.double() / 6 / q.tensor_scale.double())[other]
    middle = (scale.double()[other] + q.scale.view(torch.float8_e4m3fn).double()[other]) / 2
    assert ((wanted - middle).abs() < 4 * 2.0**-23 * middle).all()
    blocks = same.repeat_interleave(16, -1)
    differ = (values_of(nibbles(theirs._quantized_data)) != values_of(codes_of(q))) & blocks
    assert_beside_a_tie(x, q, differ)


def test_modelopt_nvfp4_decodes_our_bytes(modelopt):
    x = torch.randn(64, 128)
    q = bs.quantize(x, bs.NVFP4, scale="mse")
    theirs = modelopt.NVFP4QTensor(q.shape, torch.float32, q.codes)
    scale = q.scale.view(torch.float8_e4m3fn)
    y = theirs.dequantize(scale=scale, double_scale=q.tensor_scale, block_sizes={-1: 16})
    # They multiply the two scales first: one float32 rounding apart.
    torch.testing.assert_close(y, q.dequantize(), rtol=2.0**-22, atol=0)


def test_modelopt_tensor_scale_is_ours_to_a_rounding(modelopt, x):
    theirs = modelopt.NVFP4QTensor.get_weights_scaling_factor_2(x)
    ours = bs.quantize(x, bs.NVFP4).tensor_scale
    torch.testing.assert_close(ours, theirs, rtol=2.0**-22, atol=0)


def test_modelopt_mxfp4(modelopt, x):
    """Scales are rceil. Its codes take the lower value on every tie; ours the even one."""
    theirs, scale = modelopt.MXFP4QTensor.quantize(x.clone(), 32)
    q = bs.quantize(x, bs.MXFP4, scale="rceil")
    filled = x.unflatten(-1, (-1, 32)).abs().amax(-1) > 0
    assert torch.equal(scale.reshape(q.scale.shape)[filled], q.scale[filled])
    step = torch.exp2(q.scale.double() - 127).repeat_interleave(32, -1)
    quotient = (x.double() / step).abs()
    tie = torch.isin(quotient, torch.tensor([0.75, 1.75, 3.5], dtype=torch.float64))
    same = values_of(nibbles(theirs._quantized_data)) == values_of(codes_of(q))
    assert torch.equal(same, ~tie)


def test_modelopt_mxfp8(modelopt, x):
    theirs, scale = modelopt.MXFP8QTensor.quantize(x.clone())
    q = bs.quantize(x, bs.MXFP8)
    filled = x.unflatten(-1, (-1, 32)).abs().amax(-1) > 0
    assert torch.equal(scale.reshape(q.scale.shape)[filled], q.scale[filled])
    assert torch.equal(theirs._quantized_data.view(torch.uint8).reshape(q.codes.shape), q.codes)


# --- compressed-tensors ---


def test_compressed_tensors_mx_scales(x):
    """Its MX rule is ours named even1: one mantissa bit, except for its 6-bit type."""
    utils = pytest.importorskip("compressed_tensors.quantization.utils.mxfp_utils")
    amax = x.unflatten(-1, (-1, 32)).abs().amax(-1)
    filled = amax > 0
    for bits, fmt_ in ((4, bs.MXFP4), (6, bs.MXFP6_E2M3), (8, bs.MXFP8)):
        theirs = utils.generate_mx_scales(amax, bits)
        ours = bs.quantize(x, fmt_, scale="even1").scale
        assert torch.equal(theirs.clamp(0, 254).to(torch.uint8)[filled], ours[filled])


def test_compressed_tensors_global_scale_is_the_reciprocal(x):
    """To a rounding: it computes 2688 * (1 / amax) where we divide once."""
    utils = pytest.importorskip("compressed_tensors.quantization.utils")
    theirs = utils.generate_gparam(x.min(), x.max())
    ours = bs.quantize(x, bs.NVFP4).tensor_scale
    torch.testing.assert_close(1 / theirs[0], ours, rtol=2.0**-22, atol=0)
    assert torch.equal(1 / (1 / ours), ours)  # what they store of ours comes back exactly


def test_compressed_tensors_packs_alike():
    fp4 = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
    fp6 = pytest.importorskip("compressed_tensors.compressors.mxfp6.helpers")
    q = bs.quantize(torch.randn(64, 128), bs.MXFP4)
    assert torch.equal(fp4.pack_fp4_to_uint8(values_of(codes_of(q))), q.codes)
    q = bs.quantize(torch.randn(64, 128), bs.MXFP6_E2M3)
    values = torch.tensor(bs.MXFP6_E2M3.element.values)[codes_of(q).long()]
    assert torch.equal(fp6.pack_fp6_to_uint8(values), q.codes)
