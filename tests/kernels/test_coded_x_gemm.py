"""The Hopper GEMM that decodes quantised x itself: where it may, what it costs, how it compiles. No
GPU is needed."""

from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import sm90_gemm
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.kernels.matmul.sm90_gemm.cost import cost
from blockscale.kernels.matmul.sm90_gemm.shared_memory import shared_bytes
from blockscale.kernels.matmul.sm90_gemm.space import every_config
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu
from blockscale.runtime.cuda import cubin, load_nvrtc
from runtime import cubins

CODED = [bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP6_E3M2, bs.MXFP8, bs.MXFP8_E5M2]


def problem(x=bs.NVFP4, w=bs.NVFP4, **facts):
    facts = {"verb": "matmul", "m": 512, "n": 4096, "k": 4096, "out": "bfloat16", **facts}
    kinds = str(Kind(x, canonical(x))), str(Kind(w, fragments(w)))
    return Problem(x=kinds[0], w=kinds[1], device=gpu("h200"), **facts)


def coded(asked):
    return [each for each in every_config(asked) if each.decodes_x]


@pytest.mark.parametrize("format", CODED, ids=str)
def test_rows_of_scales_must_be_multiples_of_16_bytes(format):
    least = 16 * format.block
    for k, legal in ((least, True), (3 * least, True), (least + 64, False), (least // 2, False)):
        assert bool(coded(problem(format, k=k))) == legal
    assert not coded(replace(problem(format), x="bfloat16"))


@pytest.mark.parametrize("format", CODED, ids=str)
def test_every_config_that_decodes_x_fits(format):
    asked = problem(format, bs.MXFP8, out="float32")
    assert {each.tile_m for each in coded(asked)} == {64, 96, 128, 160, 192, 224, 256}
    for config in coded(asked):
        assert config.cluster == 1
        assert shared_bytes(config, asked) <= asked.device.shared_per_cta
        plain = replace(config, decodes_x=False)
        rows = config.tile_m * 16  # scales: codes come to where their numbers will be
        more = (shared_bytes(config, asked) - shared_bytes(plain, asked)) / config.stages
        assert rows <= more < rows + 1024  # stages begin at multiples of 1,024 bytes


def test_a_launch_that_decodes_x_is_part_of_the_predicted_time():
    config = Config(128, 2, 1, 4, 1)
    asked = problem()
    alone = cost(replace(asked, x="bfloat16"), config).microseconds
    assert cost(asked, config).microseconds > alone + 2
    assert cost(asked, replace(config, decodes_x=True)).microseconds > alone


def test_labels_say_what_decodes_x():
    assert "x decoded by the producer" in str(Config(128, 2, 1, 4, 1, decodes_x=True))
    assert "decoded" not in str(Config(128, 2, 1, 4, 1))


@pytest.mark.skipif(isinstance(load_nvrtc(), str), reason=str(load_nvrtc()))
@pytest.mark.skipif(cubins.disassembler() is None, reason="no cuobjdump")
@pytest.mark.parametrize(
    ("format", "config", "facts"),
    [
        (bs.NVFP4, Config(256, 2, 1, 4, 1, decodes_x=True),
         {"verb": "gated_matmul", "gated": True, "activation": "silu"}),
        (bs.MXFP8, Config(128, 2, 2, 4, 1, decodes_x=True),
         {"verb": "grouped_matmul", "groups": 8, "ragged": True}),
    ],
    ids=["nvfp4-gated", "mxfp8-grouped"],
)  # fmt: skip
def test_compiles_without_spills(format, config, facts):
    """The largest sums that a thread has, beside the fewest registers."""
    asked = problem(format, format, **facts)
    build = sm90_gemm.bind(asked, config).builds[0]
    code = cubin(build, asked.target)
    used = cubins.usage(code)[build.entry]
    assert used.stack == used.local == 0
    (listing,) = cubins.machine_code([(build, code)], asked.target)
    there = cubins.opcodes(listing)
    assert all(any(each.startswith(need) for each in there) for need in build.needs)
    assert not cubins.loads_too_early(listing, build, asked.target)
    assert not cubins.products_are_serial(listing)
    assert {"USETMAXREG.DEALLOC.CTAPOOL", "FENCE.VIEW.ASYNC.S", "HMUL2.BF16_V2"} <= there
