"""Native code weighs squared errors as the definition does, to the bit."""

import math

import pytest
import torch

from blockscale.formats import CATALOGUE, NVFP4
from blockscale.kernels.native import NativeConfig
from blockscale.kernels.quantize import cpu as native_quantize
from blockscale.kernels.quantize import reference as defined_quantize
from blockscale.layouts import canonical
from blockscale.numerics import amax_bits, rules_of, tensor_scale_of
from blockscale.ops.quantize import storage
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import device_of, load_native, native
from conftest import FORMATS

loaded = load_native()
pytestmark = pytest.mark.skipif(isinstance(loaded, str), reason=f"no native library: {loaded}")

ISAS = [] if isinstance(loaded, str) else native.isas_up_to(loaded.isa)
SEARCHED = [format for format in FORMATS if "mse" in rules_of(format)]


def quantize_by(kernel, config, x, format, tensor_scale, importance):
    kind = Kind(format, canonical(format))
    problem = Problem(
        verb="quantize",
        m=x.shape[0] * x.shape[1],
        n=0,
        k=x.shape[2],
        rule="mse",
        weighted=True,
        x=dtype_name(x.dtype),
        w=str(kind),
        out="uint8",
        device=device_of(torch.device("cpu")),
    )
    table = torch.tensor(format.codebook) if format.is_codebook else None
    codes, scale = (part.fill_(0xA5) for part in storage(kind, tuple(x.shape), x.device))
    config = config or kernel.configs(problem)[0]
    kernel.bind(problem, config)(x, tensor_scale, table, codes, scale, importance)
    return codes, scale


def check(x, format, importance, threads=1):
    """With so many threads from here on: the fixture of that name restores them."""
    tensor_scale = tensor_scale_of(amax_bits(x), format) if format.has_tensor_scale else None
    expected = quantize_by(defined_quantize, None, x, format, tensor_scale, importance)
    torch.set_num_threads(threads)
    for isa in ISAS:
        got = quantize_by(native_quantize, NativeConfig(isa), x, format, tensor_scale, importance)
        for name, a, b in zip(("codes", "scale"), got, expected, strict=True):
            where = (a != b).nonzero()
            assert not len(where), f"{isa} {name}: {len(where)} bytes differ, first {where[0]}"


def hard_importance(groups, k, block):
    """Spread wide, with zeros, subnormals and the largest number; every fifth block is unusable."""
    values = torch.randn(groups, k).mul(8).exp()
    special = torch.tensor([0.0, -0.0, 2.0**-149, 1e-40, torch.finfo(torch.float32).max])
    where = torch.rand(groups, k) < 0.1
    values = torch.where(where, special[torch.randint(len(special), (groups, k))], values)
    blocks = values.unflatten(-1, (-1, block))
    unusable = torch.tensor([math.nan, math.inf, -1.0, -math.inf])
    blocks[:, ::5, 3] = unusable[torch.randint(4, blocks[:, ::5, 3].shape)]
    blocks[:, 1::5] = 0.0
    return values


def hard_numbers(groups, n, k):
    x = torch.randn(groups, n, k)
    x[:, 0] *= torch.randn(groups, k).mul(6).exp()
    x[:, 1] *= 1e-41
    x[:, 2, ::50], x[:, 2, 1::70] = math.inf, math.nan
    x[:, 3] = torch.randint(-(2**31), 2**31, (groups, k), dtype=torch.int32).view(torch.float32)
    x[:, 4] = 0.0
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=dtype_name)
@pytest.mark.parametrize("format", SEARCHED, ids=str)
def test_weighted_scales_have_the_bits_of_the_definition(format, dtype):
    k = 10 * max(format.block, 32)
    check(hard_numbers(2, 8, k).to(dtype), format, hard_importance(2, k, format.block))


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("format", [NVFP4, CATALOGUE["kbit3"]], ids=str)
def test_threads_and_segments_do_not_show(format, count, threads):
    k = 2 * 1024 + 32  # a row is cut in three, unevenly
    check(torch.randn(3, 13, k), format, hard_importance(3, k, format.block), count)


def test_importance_may_be_strided():
    importance = hard_importance(4, 128, 32)[::2]
    check(torch.randn(2, 5, 128), CATALOGUE["kbit4"], importance)
    check(torch.randn(3, 5, 128), CATALOGUE["kbit4"], importance[:1].expand(3, 128))


def test_flushed_subnormals_change_nothing(flush_denormal, threads):
    torch.set_flush_denormal(False)  # for as long as the input is made
    x, importance = hard_numbers(1, 6, 320), hard_importance(1, 320, 32)
    torch.set_flush_denormal(True)
    check(x, CATALOGUE["kbit4"], importance, threads=2)
