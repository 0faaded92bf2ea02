"""tcgen05 of kind::f16 with its A operand in TMEM as the emulator has it.

Instruction descriptors with known answers, the places of tcgen05.st and tcgen05.ld, and mistakes of
a kernel that it reports.
"""

import ctypes
import shutil
from ctypes import c_int, c_ubyte, c_uint32, c_void_p

import pytest
import torch

from blockscale.runtime.cuda import Build
from native.host_function import SCHEDULES, EmulatedError, compiled, emulator, scheduled
from native.host_library import EMULATOR

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
MISTAKES = (
    "NONE", "NO_WAIT_ST", "NO_FENCE_BEFORE", "NO_FENCE_AFTER", "STORE_TOO_SOON", "ODD_LANE",
    "OTHER_LANES",
)  # fmt: skip
K, N = 64, 32


class F16Arguments(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("a", "b", "out")),
        ("idesc", c_uint32),
        ("mistake", c_int),
        ("end", c_ubyte * 32),
    ]


def instruction(word, ctas):
    facts = (c_int * 3)()
    inspect = emulator().inspect_f16_instruction
    inspect.argtypes = (c_uint32, c_int, c_void_p)
    inspect.restype = ctypes.c_char_p
    refused = inspect(word, ctas, facts)
    return refused.decode() if refused else tuple(facts)


def test_known_instruction_descriptors():
    """The first is what CUTLASS makes for bfloat16 and float32 sums of 128 x 128."""
    assert instruction(0x08200490, 1) == (128, 128, 1)
    assert instruction(0x10400010, 2) == (256, 256, 0)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (0x08200480, "float32"),
        (0x08200090, "different types"),
        (0x08200D90, "types of kind::f16"),
        (0x08220490, "N is 136"),
        (0x04200490, "M is 64"),
        (0x08A00490, "bits 6, 23"),
        (0x08208490, "MN-major"),
        (0x08200491, "sparse"),
    ],
)
def test_illegal_instruction_descriptors(word, why):
    assert why in instruction(word, 1)


# --- fragments, by the figures of mma.m16n8k16 in the PTX manual ----------------------------------


def a_fragments(a):
    """Bfloat16 [128, 64] -> words [tile, thread, 16]; register 2 j of a step has row t / 4."""
    words = a.view(torch.int16).to(torch.int32) & 0xFFFF
    out = torch.zeros(8, 32, 16, dtype=torch.int32)
    for thread in range(32):
        for step in range(4):
            for register in range(4):
                row = thread // 4 + 8 * (register % 2)
                k = 16 * step + 8 * (register // 2) + 2 * (thread % 4)
                pair = words.view(8, 16, K)[:, row, k : k + 2]
                out[:, thread, 4 * step + register] = pair[:, 0] | pair[:, 1] << 16
    return out.contiguous()


def of_c_fragments(out):
    """Float32 [tile, thread, 16] -> [128, 32]."""
    sums = torch.zeros(8, 16, N)
    for thread in range(32):
        for i in range(16):
            row, column = thread // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (thread % 4) + i % 2
            sums[:, row, column] = out[:, thread, i]
    return sums.view(128, N)


def run(mistake="NONE"):
    a, b = (torch.randint(-8, 9, (rows, K)).bfloat16() for rows in (128, N))
    out = torch.full((8, 32, 16), torch.nan)
    fragments = a_fragments(a)
    given = [each.data_ptr() for each in (fragments, b, out)]
    idesc = 8 << 24 | N // 8 << 17 | 1 << 10 | 1 << 7 | 1 << 4
    arguments = F16Arguments(*given, idesc, MISTAKES.index(mistake))
    kernel = compiled(Build(str(EMULATOR / "f16_micro.cu"), "f16_product", ()))
    kernel.launch((1, 1, 1), 128, 8 * 1024, 0, arguments)
    return of_c_fragments(out), a.float() @ b.float().T


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_stored_fragments_are_multiplied(schedule):
    with scheduled(schedule):
        sums, expected = run()
    assert torch.equal(sums, expected)


CAUGHT = {
    "NO_WAIT_ST": "race: tcgen05.mma reads TMEM column 64",
    "NO_FENCE_BEFORE": "race: tcgen05.mma reads TMEM column 64",
    "NO_FENCE_AFTER": "race: tcgen05.mma reads TMEM column 64",
    "STORE_TOO_SOON": "race: tcgen05.(st|mma) .* TMEM column 64, which tcgen05.(mma|st)",
    "ODD_LANE": "which reaches lanes",
    "OTHER_LANES": "which reaches lanes",
}


@pytest.mark.parametrize("mistake", CAUGHT)
def test_mistakes_are_reported(mistake):
    for schedule in SCHEDULES[:2]:
        with scheduled(schedule), pytest.raises(EmulatedError, match=CAUGHT[mistake]):
            run(mistake)
