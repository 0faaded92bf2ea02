"""What the address of a load is made of, read from machine code of Hopper."""

import pytest

from runtime import sass

LOAD = "@!P2 LDGSTS.E.BYPASS.128 [R37], desc[UR10][R26.64]"


def arguments(*lines, alignment=8):
    """Of the last line: offsets of arguments, which begin at 0x210."""
    text = "\n".join(f"        /*{16 * i:04x}*/  {line} ;" for i, line in enumerate(lines))
    code = sass.instructions(text)
    return sass.arguments_of(code, sass.setters_of(code), len(code) - 1, 9, alignment)


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ([], {64, 68}),
        (["ISETP.NE.AND P3, PT, R5, RZ, PT"], {64, 68}),
        (["ISETP.NE.AND P2, PT, R5, RZ, PT"], {56, 60, 64, 68}),  # another condition now
    ],
)
def test_what_is_set_under_the_condition_of_its_use_is_what_is_used(between, expected):
    before = "LDC.64 R26, c[0x0][0x248]"
    assert arguments(before, "@!P2 LDC.64 R26, c[0x0][0x250]", *between, LOAD) == expected


def test_under_another_condition_both_values_count():
    lines = ["LDC.64 R26, c[0x0][0x248]", "@P2 LDC.64 R26, c[0x0][0x250]", LOAD]
    assert arguments(*lines) == {56, 60, 64, 68}


def test_arguments_begin_where_their_struct_is_aligned():
    lines = ["LDC.64 R26, c[0x0][0x248]", LOAD]
    assert arguments(*lines) == {56, 60}
    assert arguments(*lines, alignment=64) == {8, 12}


def test_an_element_of_an_array_counts_as_its_first():
    index = ["IMAD.MOV.U32 R2, RZ, RZ, 0x30", "IMAD R2, R11, 0x28, R2"]
    lines = [*index, "LDC.64 R26, c[0x0][R2+0x220]", LOAD]
    assert arguments(*lines) == {64, 68}
