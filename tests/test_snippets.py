"""Every snippet and every command line of the documentation runs, to the last step.

The blocks of a page run in order in one folder, as a reader would try them, with a model in it that
is called what the page calls it. Its head is tied to its embeddings, as small models' mostly are.
"""

import shlex
import sys

import pytest
from rich.console import Console
from typer.main import get_command

from blockscale import cli, ops
from blockscale.runtime import tuned
from examples.demo_model import smollm2, why_not_smollm2
from models.tiny import write_tiny
from snippets import (
    NOT_CODE,
    NOT_RUN,
    PAGES,
    ROOT,
    RUN,
    SMALLER,
    blocks,
    command_lines,
    inline_commands,
    why_not_run,
)

BLOCKS = [block for page in PAGES for block in blocks(page)]
LINES = [line for block in BLOCKS if block.language == "sh" for line in command_lines(block)]
PLAIN = ("SRC", "SOURCE", "FOLDER")  # what pages call a model that is not quantised
MODELS = (*PLAIN, "DST", "TARGET", "MODEL")
QUICKLY = {"eval": ["--tokens", "520"], "generate": ["--max-tokens", "4"], "tune": ["--rows", "1"]}


@pytest.fixture(scope="session")
def tied(tmp_path_factory):
    pytest.importorskip("transformers")
    return write_tiny(tmp_path_factory.mktemp("tied") / "model", tie_word_embeddings=True)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to work in, where nothing of this machine's tuning counts."""
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BLOCKSCALE_TUNED")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    _forget()
    yield tmp_path / "work"
    _forget()


@pytest.fixture
def new_to_transformers(monkeypatch):
    """As in a new process: the integration counts once a page imports it, whatever tests did."""
    integration = pytest.importorskip("blockscale.integrations.transformers")
    integration.unregister()
    monkeypatch.delitem(sys.modules, integration.__name__)
    yield
    integration.unregister()


def _forget():
    tuned.forget()
    ops.choose.cache_clear()


def provide(model, place):
    """The model under every name; MODEL is quantised."""
    for name in PLAIN:
        (place / name).symlink_to(model, target_is_directory=True)
    run_line("blockscale quantize SRC MODEL --format nvfp4")


def run_line(line, *more):
    """As a shell would; anything but success is a failure that names the line."""
    words = [*shlex.split(line), *more]
    assert words[0] == "blockscale", f"{line}: give a reason in NOT_RUN for what is not run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stop:
            cli.app()
    assert stop.value.code in (0, None), f"{line}: exit status {stop.value.code}"


def smaller(line):
    for there, here in SMALLER.items():
        line = line.replace(there, here)
    return line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_runs(page, tied, place, new_to_transformers):
    provide(tied, place)
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})
        if block.language == "sh":
            for line in command_lines(block):
                if not why_not_run(line):
                    run_line(smaller(line))


def names_a_model(line):
    return not set(MODELS).isdisjoint(shlex.split(line))


@pytest.mark.skipif(bool(why_not_smollm2()), reason=f"SmolLM2: {why_not_smollm2()}")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_command_lines_of_a_page_run_on_smollm2(page, place):
    """Those that name a model, with less text and fewer rows."""
    lines = [
        line
        for block in blocks(page)
        if block.language == "sh"
        for line in command_lines(block)
        if names_a_model(line) and not why_not_run(line)
    ]
    if lines:
        provide(smollm2(ROOT / "build" / "smollm2", Console(stderr=True)), place)
    for line in lines:
        run_line(line, *QUICKLY.get(line.split()[1], []))


def test_every_block_is_run_or_has_a_reason_not_to_be():
    """Nothing is passed over in silence, and no reason outlives what it was for."""
    others = [block for block in BLOCKS if block.language not in RUN]
    firsts = {str(block): block.text.splitlines()[0] for block in others}
    for where, first in firsts.items():
        assert any(first.startswith(known) for known in NOT_CODE), f"{where}: {first}"
    for known in NOT_CODE:
        assert any(first.startswith(known) for first in firsts.values()), f"{known}: stale"
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in LINES), f"{start}: stale"
    for there in SMALLER:
        assert any(there in line for line in LINES), f"{there}: stale"
    assert any(block.language == "python" for block in BLOCKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_sentences_exist(page):
    known = get_command(cli.commands).commands
    for line in inline_commands(page):
        _, name, *words = line.split()
        assert name in known, line
        options = [each for param in known[name].params for each in _spellings(param)]
        for word in words:
            assert not word.startswith("--") or word in options, line


def _spellings(parameter):
    return (*parameter.opts, *parameter.secondary_opts)
