"""Every CUDA kernel compiles for every target, without a GPU, and uses an SM as it did before.

A kernel joins by offering `every_build`: see cubins.py.
"""

import json
import warnings
from pathlib import Path

import pytest

from blockscale.runtime.cuda import TARGETS, Build, cubin, load_nvrtc
from runtime import cubins

SAMPLE = str(Path(__file__).with_name("sources") / "sample.cu")
ROOT = Path(__file__).parents[2]
MODULES = cubins.compiled_modules()
RECORD = json.loads(cubins.RECORD.read_text())

_DISASSEMBLED = 12  # one build in so many: it takes longer than compiling
_ALL_DISASSEMBLED = "sm_90a"  # the first on which kernels overlap; others compile the same source

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


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("module", MODULES)
def test_every_kernel_compiles_and_does_not_spill(module, target):
    wanted = getattr(MODULES[module], "instructions", lambda build: ())
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
    compiled = cubins.compile_all(MODULES[module].every_build(target), target)
    for position, (build, code) in enumerate(compiled):
        name, used = cubins.label(build, target), cubins.usage(code)[build.entry]
        complaints.append(cubins.complaint(name, used, record, cubins.register_limit(build)))
        if position % _DISASSEMBLED and target != _ALL_DISASSEMBLED:
            continue
        complaints += [
            f"{name}: {load} before it has waited for the kernel ahead"
            for load in cubins.loads_too_early(code, build, target)
        ]
        if wanted(build):
            there = cubins.opcodes(code)
            for instruction in wanted(build):
                if not any(each.startswith(instruction) for each in there):
                    complaints.append(f"{name}: has no {instruction}")
    complaints = [each for each in complaints if each]
    assert not complaints, "\n".join(complaints)


def test_no_record_is_left_of_a_kernel_that_is_gone():
    builds = {
        cubins.label(build, target)
        for module in MODULES.values()
        for target in TARGETS
        for build in module.every_build(target)
    }
    assert set(RECORD["kernels"]) <= builds, cubins.HOW_TO_RECORD


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_usage_and_instructions_are_read(target):
    plain, spilling, multiplying = (
        cubin(sample(**defines), target)
        for defines in ({}, {"SPILLS": 1}, {"SPILLS": 0, "MULTIPLIES": 1})
    )
    used = cubins.usage(plain)["sample"]
    assert 0 < used.registers < 64
    assert used.shared >= 512
    assert used.stack == used.local == 0
    assert cubins.usage(spilling)["sample"].stack >= 1200
    assert any(each.startswith("HMMA") for each in cubins.opcodes(multiplying))
    assert not any(each.startswith("HMMA") for each in cubins.opcodes(plain))


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("target", ["sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize(
    ("reads", "opcode"),
    [("READS_EARLY", "LDG"), ("COPIES_EARLY", "LDGSTS"), ("TMA_EARLY", "UBLKCP"), ("", "")],
)
def test_a_load_before_the_wait_is_seen(reads, opcode, target):
    build = sample(WAITS=1, **({reads: 1} if reads else {}))
    found = cubins.loads_too_early(cubin(build, target), build, target)
    assert [each.split(".")[0].split(" ")[0] for each in found] == [opcode] * bool(opcode)
    alone = sample()
    assert not cubins.loads_too_early(cubin(alone, target), alone, target)  # waits for nobody


def test_what_rises_is_a_complaint_and_what_falls_is_not():
    record = {"kernel": [40, 1024]}
    assert cubins.complaint("kernel", cubins.Usage(40, 0, 1024, 0), record, 64) is None
    assert cubins.complaint("kernel", cubins.Usage(32, 0, 512, 0), record, 64) is None
    rise = cubins.complaint("kernel", cubins.Usage(41, 0, 1024, 0), record, 64)
    assert "41 registers, 40 before; if that is meant: python " in rise
    assert "1040 bytes" in cubins.complaint("kernel", cubins.Usage(40, 0, 1040, 0), record, 64)
    assert "it spills" in cubins.complaint("kernel", cubins.Usage(40, 8, 1024, 0), record, 64)
    assert "not recorded" in cubins.complaint("other", cubins.Usage(40, 0, 1024, 0), record, 64)
    # Another compiler's record says nothing of registers, the launch does.
    assert cubins.complaint("other", cubins.Usage(64, 0, 1024, 0), None, 64) is None
    assert "65 registers, 64 at most" in cubins.complaint(
        "other", cubins.Usage(65, 0, 1024, 0), None, 64
    )
    assert "it spills" in cubins.complaint("other", cubins.Usage(40, 0, 1024, 8), None, 64)
