"""The table of faults is made of what the tests are marked with."""

import pytest

from docs.faults import fault_table, find_faults

MARKED = """
import pytest

@pytest.mark.parametrize("keep", [0, 5])
@pytest.mark.fault("a shard is cut off", outcome="ValueError")
def test_cut(keep): ...

def test_plain(): ...
"""


@pytest.fixture
def tests(tmp_path):
    folder = tmp_path / "tests" / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "test_files.py").write_text(MARKED)
    return tmp_path / "tests"


def test_a_marked_test_is_listed_under_its_folder(tests):
    (fault,) = find_faults(tests)
    assert fault == ("a shard is cut off", "ValueError", "tests/checkpoint/test_files.py::test_cut")
    table = fault_table(tests)
    assert table.startswith("## Checkpoints")
    assert (
        "| a shard is cut off | ValueError | `tests/checkpoint/test_files.py::test_cut` |" in table
    )


@pytest.mark.parametrize(
    "marker",
    ['("only this")', '(outcome="x")', '("a", outcome=WHAT)', '("a|b", outcome="x")', "()"],
)
def test_a_mark_that_cannot_be_listed_is_an_error(tests, marker):
    text = f"@pytest.mark.fault{marker}\ndef test_x(): ..."
    (tests / "checkpoint" / "test_more.py").write_text(text)
    with pytest.raises(ValueError, match=r"test_more.py::test_x"):
        fault_table(tests)


def test_a_folder_without_a_title_is_an_error(tests):
    (tests / "checkpoint").rename(tests / "elsewhere")
    with pytest.raises(ValueError, match=r"test_files.py::test_cut: TITLES .* has no 'elsewhere'"):
        fault_table(tests)
