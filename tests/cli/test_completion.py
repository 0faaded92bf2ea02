"""Shell completion, as the shell asks for it; and the names that it offers."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from blockscale import cli
from blockscale.checkpoint import WRITABLE
from blockscale.cli import names
from blockscale.formats import CATALOGUE
from blockscale.models import parse_dtype
from blockscale.numerics import parse_activation, rules_of
from blockscale.runtime.cuda.arch import TARGETS

NO_DETECTION = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"  # the shell is named instead


def completed(*words):
    """What the last word may become."""
    found = CliRunner().invoke(
        cli.commands,
        [],
        prog_name="blockscale",
        env={
            "_BLOCKSCALE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("blockscale", *words)),
            "COMP_CWORD": str(len(words)),
        },
    )
    return found.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["qu"], ["quantize"]),
        (["formats", "nv"], ["nvfp4"]),
        (["layout", "mxfp6"], ["mxfp6_e2m3", "mxfp6_e3m2"]),
        (["explain", "--format", "kbit"], ["kbit2", "kbit3", "kbit4", "kbit5"]),
        (["explain", "--x-format", "in"], ["int8"]),
        (["explain", "--dtype", "b"], ["bfloat16"]),
        (["explain", "--device", "cu"], ["cuda", "cuda:0", "cuda:1"]),
        (["quantize", "--format", "nv"], ["nvfp4"]),
        (["quantize", "--scale", "f"], ["four_over_six", "floor"]),
        (["quantize", "--dialect", "c"], ["compressed-tensors"]),
        (["quantize", "--importance", "a"], ["auto"]),
        (
            ["quantize", "--layers", "*.v_proj=k"],
            ["*.v_proj=keep"] + [f"*.v_proj=kbit{bits}" for bits in (2, 3, 4, 5)],
        ),
        (["eval", "--format", "*.v_proj=kbit5,nv"], ["*.v_proj=kbit5,nvfp4"]),
        (["generate", "--format", "nv"], ["nvfp4"]),
        (["tune", "--activation", "gelu"], ["gelu", "gelu_tanh"]),
        (["warmup", "--target", "sm_9"], ["sm_90a"]),
        (["warmup", "--j"], ["--jobs", "--json"]),
    ],
    ids=" ".join,
)
def test_completion(words, expected):
    assert completed(*words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell, monkeypatch):
    monkeypatch.setenv(NO_DETECTION, "1")
    result = CliRunner().invoke(cli.commands, ["--show-completion", shell], prog_name="blockscale")
    assert result.exit_code == 0
    assert "_BLOCKSCALE_COMPLETE=complete_" + shell in result.stdout


def test_installing_it(tmp_path):
    """In a home of its own: the start-up file then loads the script."""
    subprocess.run(
        [sys.executable, "-m", "blockscale", "--install-completion", "bash"],
        env={**os.environ, "HOME": str(tmp_path), NO_DETECTION: "1"},
        check=True,
        capture_output=True,
    )
    (script,) = tmp_path.glob(".bash_completions/*")
    assert str(script) in (tmp_path / ".bashrc").read_text()


def test_the_names_are_those_that_the_library_takes():
    rules = {rule for format in CATALOGUE.values() for rule in rules_of(format)}
    assert set(names.SCALE_RULES) == rules
    assert tuple(WRITABLE) == names.DIALECTS
    assert names.TARGETS == TARGETS
    for dtype in names.DTYPES:
        assert parse_dtype(dtype) is not None
    for activation in names.ACTIVATIONS:
        assert parse_activation(activation)
