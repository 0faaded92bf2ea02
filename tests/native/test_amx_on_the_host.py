"""Products of bfloat16 x by AMX tiles, run by emulated instructions.

What this shows without such a CPU: how codes and scales become tiles, how x is arranged, and that
only a column's own scale, never the padding beside it, leaves a panel to `stream`.
"""

from tests.native.emulated_x86 import EMULATED, needs_compiler, run_silently


@needs_compiler
def test_panels_are_exact_and_left_for_an_unsafe_scale_of_a_column_alone(tmp_path):
    run_silently("amx_panels.cpp", {"TILES": EMULATED, "MAIN": []}, tmp_path)
