"""int8 products for VNNI and for AMX, run by emulated instructions: the bits of the portable ones.

What this shows without such a CPU: what is looked up, how x is arranged, how tiles are configured,
and the order of sums.
"""

from tests.native.emulated_x86 import EMULATED, needs_compiler, run_silently

PARTS = {
    "PORTABLE": ["-DPORTABLE_KERNELS"],
    "VNNI": [*EMULATED, "-D__AVX512VNNI__"],
    "TILES": EMULATED,
    "ROWS": ["-ffp-contract=off"],
    "MAIN": [],
}


@needs_compiler
def test_vnni_and_tiles_give_the_bits_of_portable_code(tmp_path):
    run_silently("int8_host.cpp", PARTS, tmp_path)
