"""Every CUDA kernel compiles for every target, without a GPU, and uses an SM as it did before.

A kernel joins by being registered: see cubins.py.
"""

import json
import re
import warnings
from functools import cache
from pathlib import Path

import pytest

from blockscale.kernels.cuda.epilogue import epilogue
from blockscale.runtime.cuda import TARGETS, Build, cubin, load_nvrtc
from blockscale.runtime.cuda.arch import capability
from blockscale.runtime.cuda.build import FOLDER
from runtime import cubins

SAMPLE = str(Path(__file__).with_name("sources") / "sample.cu")
ROOT = Path(__file__).parents[2]
COMPILED = cubins.compiled()
RECORD = json.loads(cubins.RECORD.read_text())

needs_nvrtc = pytest.mark.skipif(isinstance(load_nvrtc(), str), reason=str(load_nvrtc()))
needs_disassembler = pytest.mark.skipif(
    cubins.disassembler() is None, reason="no cuobjdump: pip install nvidia-cuda-cuobjdump"
)


@pytest.fixture(autouse=True)
def _kept_beside_the_sources(monkeypatch):
    """A second run compiles what has changed."""
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(ROOT / "build" / "cubins"))


def sample(**defines):
    every = {"SPILLS": 0, "MULTIPLIES": 0, "WAITS": 0, **defines}
    return Build(SAMPLE, "sample", tuple(every.items()))


EARLY = {"READS_EARLY": "LDG", "COPIES_EARLY": "LDGSTS", "TMA_EARLY": "UBLKCP", "": ""}


def waiting(reads):
    return sample(WAITS=1, **({reads: 1} if reads else {}))


@cache
def listings_of_waiting(target):
    """Of those that wait and the one that does not, by one start of the disassembler."""
    builds = [sample(), *map(waiting, EARLY)]
    kernels = [(build, cubin(build, target)) for build in builds]
    return dict(zip(builds, cubins.machine_code(kernels, target), strict=True))


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize(
    ("products", "target"),
    dict.fromkeys((verb in cubins.PRODUCTS, target) for verb, target in COMPILED),
    ids=lambda each: {True: "products", False: "conversions"}.get(each, each),
)
def test_every_kernel_compiles_and_does_not_spill(products, target):
    # Another compiler allocates registers in another way.
    same = RECORD["nvrtc"] == cubins.nvrtc_version()
    if not same:
        warnings.warn(
            f"registers were recorded with NVRTC {RECORD['nvrtc']}, and this is "
            f"{cubins.nvrtc_version()}: they are held to the limits of the launches alone",
            stacklevel=1,
        )
    record = RECORD["kernels"] if same else None
    complaints = []
    compiled = list(cubins.compile_all(cubins.builds_of(products, target), target))
    listings = cubins.machine_code(compiled, target)
    for (build, code), listing in zip(compiled, listings, strict=True):
        name, used = cubins.label(build, target), cubins.usage(code)[build.entry]
        complaints.append(cubins.complaint(name, used, record, cubins.register_limit(build)))
        complaints += [
            f"{name}: {load} before it has waited for the kernel ahead"
            for load in cubins.loads_too_early(listing, build, target)
        ]
        if cubins.products_are_serial(listing):
            complaints.append(f"{name}: every product is waited for")
        there = cubins.opcodes(listing)
        for instruction in build.needs:
            if not any(each.startswith(instruction) for each in there):
                complaints.append(f"{name}: has no {instruction}")
    complaints = [each for each in complaints if each]
    assert not complaints, "\n".join(complaints)


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("target", TARGETS)
def test_what_follows_a_product_of_a_library_compiles_and_does_not_spill(target):
    """No call loads it first, so that no example of a verb has it."""
    builds = [epilogue(dtype) for dtype in ("bfloat16", "float16", "float32")]
    builds += [epilogue("bfloat16", name) for name in ("silu", "swiglu_oai")]
    for build, code in cubins.compile_all(builds, target):
        used = cubins.usage(code)[build.entry]
        assert used.stack == used.local == 0
        assert used.registers <= 64  # eight CTAs of 128 threads fill half an SM


def test_every_line_is_compiled_for_some_target():
    """Both sides of each condition that asks which GPU it is."""
    sources = "".join(path.read_text() for path in FOLDER.rglob("*.cu*"))
    first = [int(each) for each in re.findall(r"#if __CUDA_ARCH__ >= (\d+)\n", sources)]
    assert len(first) == sources.count("__CUDA_ARCH__")
    kept = [100 * major + 10 * minor for major, minor in map(capability, cubins.EVERY_LINE)]
    assert first
    assert min(kept) < min(first)
    assert max(first) <= max(kept)
    assert {each // 100 for each in kept} == {capability(target)[0] for target in TARGETS}


@pytest.mark.parametrize(
    ("verb", "target"), [case for case in COMPILED if case[0] in cubins.OTHER_PRODUCTS]
)
def test_kernels_of_products_are_compiled_for_gated_and_grouped_ones_too(verb, target):
    """What multiplies a plain product on a target is compiled for the other verbs it takes."""
    plain, other = (
        {build.source for build in cubins.every_build(each, target)} for each in ("matmul", verb)
    )
    multiply = {each for each in plain if each == "stream.cu" or each.endswith("_gemm.cu")}
    assert multiply
    assert multiply <= other


@pytest.mark.parametrize("verb", ["matmul", "grouped_matmul"])
def test_kernels_that_split_tiles_are_compiled_and_those_that_do_not(verb):
    builds = [each for each in cubins.every_build(verb, "sm_90a") if each.entry == "sm90_gemm"]
    assert {dict(each.defines)["BS_SPLIT"] for each in builds} == {0, 1}


def test_no_record_is_left_of_a_kernel_that_is_gone():
    builds = {
        cubins.label(build, target)
        for verb, target in COMPILED
        for build in cubins.every_build(verb, target)
    }
    assert set(RECORD["kernels"]) <= builds, cubins.HOW_TO_RECORD


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_usage_and_instructions_are_read(target):
    builds = [sample(), sample(SPILLS=1), sample(MULTIPLIES=1)]
    plain, spilling, _ = compiled = [cubin(build, target) for build in builds]
    used = cubins.usage(plain)["sample"]
    assert 0 < used.registers < 64
    assert used.shared >= 512
    assert used.stack == used.local == 0
    assert cubins.usage(spilling)["sample"].stack >= 1200
    listings = cubins.machine_code(list(zip(builds, compiled, strict=True)), target)
    multiplies = [any(op.startswith("HMMA") for op in cubins.opcodes(each)) for each in listings]
    assert multiplies == [False, False, True]


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("target", ["sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize(("reads", "opcode"), EARLY.items())
def test_a_load_before_the_wait_is_seen(reads, opcode, target):
    none, found = (
        cubins.loads_too_early(listings_of_waiting(target)[build], build, target)
        for build in (sample(), waiting(reads))
    )
    assert [each.split(".")[0].split(" ")[0] for each in found] == [opcode] * bool(opcode)
    assert not none  # it waits for nobody


def test_what_rises_is_a_complaint_and_what_falls_is_not():
    record = {"kernel": [40, 1024]}
    assert cubins.complaint("kernel", cubins.Usage(40, 0, 1024, 0), record, 64) is None
    assert cubins.complaint("kernel", cubins.Usage(32, 0, 512, 0), record, 64) is None
    rise = cubins.complaint("kernel", cubins.Usage(41, 0, 1024, 0), record, 64)
    assert "41 registers, 40 before; if that is meant: cd tests; python " in rise
    assert "1040 bytes" in cubins.complaint("kernel", cubins.Usage(40, 0, 1040, 0), record, 64)
    assert "it spills" in cubins.complaint("kernel", cubins.Usage(40, 8, 1024, 0), record, 64)
    assert "not recorded" in cubins.complaint("other", cubins.Usage(40, 0, 1024, 0), record, 64)
    # Another compiler's record says nothing of registers, the launch does.
    assert cubins.complaint("other", cubins.Usage(64, 0, 1024, 0), None, 64) is None
    assert "65 registers, 64 at most" in cubins.complaint(
        "other", cubins.Usage(65, 0, 1024, 0), None, 64
    )
    assert "it spills" in cubins.complaint("other", cubins.Usage(40, 0, 1024, 8), None, 64)
