"""What the CUDA products decide on the host; no GPU is needed."""

import ctypes
import itertools
from math import comb

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import blockscale as bs
from blockscale.formats import CATALOGUE
from blockscale.kernels import Parts, decoded
from blockscale.kernels.cuda import epilogue
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.dequantize import cuda, cuda_fragments
from blockscale.kernels.matmul import cublas, stream
from blockscale.kernels.matmul.fragments import arguments as fragment_arguments
from blockscale.kernels.matmul.fragments import product as fragment_product
from blockscale.kernels.matmul.fragments.groups import busy_counts, rows_of_most
from blockscale.kernels.matmul.stream.choice import stream_configs
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.space import every_config
from blockscale.kernels.quantize import cuda as quantize
from blockscale.kernels.repack import cuda as repack
from blockscale.layouts import canonical
from blockscale.ops.operand import as_groups, as_rows
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu
from native.host_function import on_the_host, product_on_the_host
from products import check, exact


def problem(fmt, layout, **facts):
    facts = {"verb": "matmul", "x": "bfloat16", "out": "float32", "device": gpu("sm_90"), **facts}
    return Problem(w=str(Kind(fmt, layout)), **facts)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("groups", [0, 1, 4])  # 0: no groups of rows
@pytest.mark.parametrize("some", [bs.NVFP4, bs.KBIT4, bs.MXFP8_E5M2], ids=str)
def test_k_is_split_in_clusters_alone(some, groups, gated):
    found = set()
    for m, n, k in itertools.product((1, 3, 8, 33, 64, 65, 128), (64, 1024), (512, 8192)):
        facts = {"ragged": groups > 0, "groups": max(groups, 1), "gated": gated}
        if gated:
            facts["activation"] = "silu"
        asked = problem(some, fragments(some), m=m, n=n, k=k, **facts)
        for config in every_config(facts_of(asked)):
            assert ("in a cluster" in str(config)) == (config.splits > 1), (m, n, k, config)
            found.add(config.splits > 1)
    assert found == {False, True}


@pytest.mark.parametrize(
    ("m", "groups"), [(40, 512), (640, 512), (2560, 512), (64, 64), (1024, 64)]
)
def test_one_busy_group_in_a_hundred_has_more_rows(m, groups):
    """Where each row goes to every group with the same chance."""
    asked = problem(bs.NVFP4, fragments(bs.NVFP4), m=m, n=64, k=64, groups=groups, ragged=True)
    rows, chance = rows_of_most(asked, 128), 1 / groups
    sizes = [comb(m, i) * chance**i * (1 - chance) ** (m - i) for i in range(rows + 1)]
    assert 1 - sum(sizes) <= 0.0105 * (1 - sizes[0])  # nearly: groups are taken for many
    assert 1 - sum(sizes[:-1]) > 0.0095 * (1 - sizes[0])  # and not with fewer


@pytest.mark.parametrize(
    ("m", "groups"), [(16, 64), (1, 8), (64, 64), (2560, 512), (3, 1), (512, 8)]
)
def test_more_groups_have_rows_in_some_calls(m, groups):
    """As often as in random ones, as far as eight cases can tell: to a sixteenth, and what a normal
    distribution and 2,000 calls are off."""
    asked = problem(bs.NVFP4, fragments(bs.NVFP4), m=m, n=64, k=64, groups=groups, ragged=True)
    told = busy_counts(asked)
    assert sum(chance for chance, _ in told) == 1
    owners = torch.randint(groups, (2000, m), generator=torch.Generator().manual_seed(0))
    busy = torch.tensor([len(set(each)) for each in owners.tolist()])
    for limit in range(busy.min() - 1, busy.max() + 2):
        expected = sum(chance for chance, each in told if each > limit)
        assert abs(expected - (busy > limit).double().mean().item()) < 1 / 16 + 0.05, limit


@pytest.mark.parametrize(
    ("m", "least"),
    [
        (16, 2),  # one in a hundred has more than 2 of them
        (32, 4),  # one in 27 has more than 2, which take as long as 4
        (256, 8),  # one in 46 more than 8
        (384, 16),  # one in seven more than 8
        (640, 16),  # one in 35 more than 16
        (1024, 32),  # one in 45 more than 24, of which no sweep knows
    ],
)
def test_a_tile_may_be_too_small_for_one_busy_group_in_fourteen(m, least):
    asked = problem(bs.KBIT4, fragments(bs.KBIT4), m=m, n=1536, k=2048, groups=64, ragged=True)
    assert min(each.tile_m for each in every_config(facts_of(asked))) == least


def test_arguments_are_as_long_as_the_kernel_takes_them():
    """Which reads a struct that is aligned to 64 bytes where it begins with maps."""
    assert ctypes.sizeof(fragment_arguments.WgmmaArguments) % 64 == 0
    assert fragment_arguments.Arguments.weight.offset == 64


@pytest.mark.parametrize("some", [bs.NVFP4, bs.KBIT4, bs.MXFP8], ids=str)
def test_gate_and_up_take_turns_only_where_no_tile_holds_all_rows(some):
    """In each turn all weights are read again."""
    for m in (16, 32, 64, 128):
        facts = {"gated": True, "activation": "silu"}
        asked = problem(some, fragments(some), m=m, n=4096, k=4096, **facts)
        assert stream_configs(asked)[0].tile_m >= m


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_120a"])
@pytest.mark.parametrize("gated", [False, True])
def test_shared_memory_has_room_for_every_product(target, gated):
    facts = {"device": gpu(target), "gated": gated, "activation": "silu" if gated else ""}
    shapes = ((768, 2048), (2048, 512), (96, 320))
    for (n, k), groups, m in itertools.product(shapes, (0, 8, 128), (1, 3, 6, 16, 40, 100, 128)):
        more = {"ragged": groups > 0, "groups": max(groups, 1)}
        for some in filter(fragments, CATALOGUE.values()):
            asked = problem(some, fragments(some), m=m, n=n, k=k, **facts, **more)
            assert next(every_config(facts_of(asked)), None), asked


def test_small_weights_keep_their_bits_in_float16(monkeypatch):
    """float16 has its subnormals where a codebook in float16 meets the small scales."""

    on_the_host(monkeypatch, cuda, epilogue, watched=False)
    monkeypatch.setattr(decoded, "_product", product_on_the_host)
    size = torch.exp2(torch.arange(16) * -1.0)[:, None]
    q = bs.quantize(torch.randn(16, 64) * size, bs.KBIT4)
    x, out = torch.randn(200, 64).half(), torch.empty(200, 16)
    asked = problem(bs.KBIT4, canonical(bs.KBIT4), m=200, n=16, k=64, x="float16")
    config = cublas.configs(asked)[0]
    cublas.bind(asked, config, (as_groups(q.operand),))(x, (None,), None, out)
    check(out, x.double(), exact(q), torch.float32, torch.float16)


@pytest.fixture
def launches(monkeypatch):
    """Of the streaming kernel, none of which happens: what it was built with, and its arguments."""
    found = []

    class Kernel:
        def __init__(self, build, device):
            self.defines = dict(build.defines)

        def launch(self, grid, threads, shared, stream, arguments, overlap, cluster):
            found.append((self.defines, arguments))

    monkeypatch.setattr(fragment_product, "function", Kernel)
    monkeypatch.setattr(fragment_product, "current_stream", lambda device: 0)
    return found


def test_a_plan_sees_weights_and_tables_that_change(launches, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    q = bs.quantize(torch.randn(4096, 64), bs.KBIT4).pack(fragments(bs.KBIT4))
    asked = problem(bs.KBIT4, fragments(bs.KBIT4), m=1, n=4096, k=64)
    plan = stream.bind(asked, stream.configs(asked)[0], (as_groups(q.operand),), frozen=True)
    x, out = torch.randn(1, 64).bfloat16(), torch.empty(1, 4096)
    for change in (lambda: None, lambda: q.scale.fill_(3), lambda: q.codebook[0].sub_(1)):
        change()
        for _ in range(4):
            plan(x, (None,), None, out)
    assert [arguments.weights_unchanged for _, arguments in launches] == 3 * [0, 0, 1, 1]
    assert [defines["BS_SYMMETRIC"] for defines, _ in launches] == 8 * [1] + 4 * [0]


@pytest.mark.parametrize("x_format", [bs.NVFP4, bs.MXFP4], ids=str)
def test_few_rows_of_codes_are_decoded_by_the_kernel(launches, monkeypatch, x_format):
    monkeypatch.setattr(fragment_product, "decode", lambda kind, parts, out, pdl: out.fill_(7))
    q = bs.quantize(torch.randn(256, 64), bs.NVFP4).pack(fragments(bs.NVFP4))
    x = bs.quantize(torch.randn(8, 64), x_format)
    kind = str(Kind(x_format, canonical(x_format)))
    for m, is_decoded in ((4, False), (8, True)):
        asked = problem(bs.NVFP4, fragments(bs.NVFP4), m=m, n=256, k=64, x=kind)
        config = next(each for each in stream.configs(asked) if not each.wgmma)
        plan = stream.bind(asked, config, (as_groups(q.operand),))
        parts = as_rows(x[:m].operand)
        plan(parts, (None,), None, torch.empty(m, 256))
        defines, arguments = launches[-1]
        assert defines["BS_X_CODED"] == 1 - is_decoded
        assert (arguments.x == parts.codes.data_ptr()) != is_decoded
        if not is_decoded:
            assert defines["BS_X_BLOCK"] == x_format.block
            assert (arguments.x_stride, arguments.x_block_stride) == (32, 64 // x_format.block)
            assert arguments.x_block_scale == parts.scale.data_ptr()
    unaligned = torch.empty(4 * 32 + 1, dtype=torch.uint8)[1:].view(4, 32).copy_(x.codes[:4])
    asked = problem(bs.NVFP4, fragments(bs.NVFP4), m=4, n=256, k=64, x=kind)
    plan = stream.bind(asked, stream.configs(asked)[0], (as_groups(q.operand),))
    plan(as_rows(x[:4].operand)._replace(codes=unaligned), (None,), None, torch.empty(4, 256))
    assert launches[-1][1].x % 4 == 0


@pytest.mark.parametrize("gated", [False, True])
def test_many_rows_come_with_maps_of_x_and_weights(launches, monkeypatch, gated):
    """The maps of weights are made once, that of x for where it is."""
    told = []

    def invented(*facts):
        told.append(facts)
        return len(told).to_bytes(1, "little") * 128

    monkeypatch.setattr(fragment_arguments, "tensor_map", invented)
    monkeypatch.setattr(fragment_product, "matrix_map", invented)
    layout = fragments(bs.NVFP4)
    parts = [
        bs.quantize(torch.randn(3, 200, 320), bs.NVFP4).pack(layout) for _ in "gu"[: 1 + gated]
    ]
    facts = {"gated": True, "activation": "silu"} if gated else {}
    asked = problem(bs.NVFP4, layout, m=40, n=200, k=320, groups=3, **facts)
    config = next(each for each in stream.configs(asked) if each.wgmma)
    plan = stream.bind(asked, config, tuple(as_groups(part.operand) for part in parts))
    tiles, made = config.weight_rows // 16 // len(parts), 2 * len(parts)
    for part, (codes, scale) in zip(parts, zip(told[::2], told[1::2], strict=True), strict=True):
        units, eights = config.tile_k // 64, config.tile_k // 128
        assert codes == (
            None,
            part.codes.data_ptr(),
            "uint32",
            (128, 5, 39),
            (128, 640),
            (128, units, tiles),
        )
        assert scale == (
            None,
            part.scale.data_ptr(),
            "uint32",
            (32, 3, 39),
            (32, 96),
            (32, eights, tiles),
        )
    for count in (1, 2):
        x = torch.randn(120, 320).bfloat16()
        plan(x, (None,) * len(parts), None, torch.empty(120, 200))
        assert told[made + count - 1 :] == [
            (None, x.data_ptr(), "bfloat16", 120, 320, 320, config.tile_m, config.tile_k // 64)
        ]
        (defines, arguments), number = launches[-1], made + count
        assert defines["BS_WGMMA"] == 1
        assert bytes(arguments.x_map) == bytes([number]) * 128
        assert bytes(arguments.code_map[0]) == bytes([1]) * 128
        assert bytes(arguments.scale_map[len(parts) - 1]) == bytes([made]) * 128
        assert arguments.x == x.data_ptr()
    overlapping = torch.randn(320).bfloat16().expand(120, 320)
    plan(overlapping, (None,) * len(parts), None, torch.empty(120, 200))
    assert told[-1][1] != overlapping.data_ptr()
    assert told[-1][5] == 320


def test_no_experts_are_left_to_others():
    none = problem(bs.NVFP4, fragments(bs.NVFP4), m=3, n=64, k=64, groups=0, ragged=True)
    assert "matrices, not 0" in (stream.refuses(none) or "")


def test_quantize_counts_the_units_that_it_launches():
    """Where it derives tensor scales, a lane takes half as many numbers."""
    place = canonical(bs.NVFP4)
    facts = {"verb": "quantize", "rule": "absmax", "m": 3 * 2**20, "n": 0, "k": 2**14}
    for derives in (False, True):
        asked = problem(bs.NVFP4, place, derives=derives, **facts)
        units = asked.m * asked.k // quantize.configs(asked)[0].values
        assert (units >= 2**31) == derives
        assert ("too many for a call" in (quantize.refuses(asked) or "")) == derives


@pytest.mark.parametrize("groups", [2**16 - 1, 2**16])
def test_a_grid_counts_no_further_than_65535_matrices(groups, monkeypatch):
    """The conversions of fragments take more of them in several launches."""
    found = []

    class Kernel:
        def __init__(self, build, device):
            pass

        def launch(self, grid, threads, shared, stream, arguments):
            found.append((grid[2], arguments.codes))

    for module in (cuda_fragments, repack):
        monkeypatch.setattr(module, "function", Kernel)
        monkeypatch.setattr(module, "current_stream", lambda device: 0)
    now, target = canonical(bs.NVFP4), fragments(bs.NVFP4)
    facts = {"m": 1, "n": 0, "k": 64, "groups": groups, "x": str(Kind(bs.NVFP4, now))}
    asked = problem(bs.NVFP4, target, verb="repack", out="uint8", **facts)
    codes, scale = (torch.zeros(groups, 1, size, dtype=torch.uint8) for size in (32, 4))
    packed = repack.bind(asked, repack.configs(asked)[0])(codes, scale)
    out = torch.empty(groups, 1, 64, dtype=torch.bfloat16)
    cuda_fragments.decode(asked.w, Parts(*packed, None, None), out)
    more = groups - (2**16 - 1)
    starts = codes.data_ptr(), packed[0].data_ptr()
    steps = codes.stride(0), packed[0].stride(0)
    expected = []
    for start, step in zip(starts, steps, strict=True):
        expected.append((2**16 - 1, start))
        expected += [(more, start + (2**16 - 1) * step)] if more else []
    assert found == expected


class Products(TorchDispatchMode):
    """The dtypes that torch multiplies."""

    def __init__(self):
        super().__init__()
        self.dtypes = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function.overloadpacket == torch.ops.aten.mm:
            self.dtypes += [each.dtype for each in arguments]
        return function(*arguments, **(named or {}))


@pytest.mark.fault(
    "another thread lets TF32 in while a product of float32 is under way",
    outcome="it cannot enter, and the setting stays what that thread made it",
)
def test_tf32_cannot_enter_and_no_setting_is_touched(monkeypatch):
    class Settings:
        def __getattr__(self, name):
            raise AssertionError(f"{name} belongs to the whole process")

        __setattr__ = __getattr__

    x, w = torch.randn(2, 8), torch.randn(3, 8)
    monkeypatch.setattr(torch.backends.cuda, "matmul", Settings())
    with Products() as seen:
        y = decoded.product(x[None], w[None].mT)[0]
    assert seen.dtypes == [torch.float64, torch.float64]  # TF32 replaces float32 alone
    assert torch.equal(y, (x.double() @ w.double().T).float())
