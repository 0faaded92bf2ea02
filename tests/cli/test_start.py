"""Help, versions, completion and wrong arguments do not load torch, which takes seconds."""

import json
import subprocess
import sys

import pytest

COMMANDS = ("formats", "layout", "explain", "doctor", "quantize", "inspect", "warmup", "tune")
COMMANDS += ("cache", "generate", "eval")

# Command lines as JSON in, exit statuses and heavy modules out, all in one fresh process.
CODE = """
import io, json, sys
from blockscale.cli import app

found = []
printed, sys.stdout = sys.stdout, io.StringIO()
for line in json.loads(sys.argv[1]):
    sys.argv = ["blockscale", *line]
    try:
        app()
    except SystemExit as stop:
        heavy = {"torch", "numpy", "transformers", "safetensors", "matplotlib"} & set(sys.modules)
        found.append([stop.code, sorted(heavy)])
print(json.dumps(found), file=printed)
"""


def loaded(*lines):
    """For each command line, its exit status and the heavy modules in memory after it."""
    result = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(lines)], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


def test_help_and_version():
    lines = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    assert loaded(*lines, ["formats"]) == [[0, []]] * (len(lines) + 1)


def test_completion(monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert loaded(["--show-completion", "bash"]) == [[0, []]]
    monkeypatch.setenv("_BLOCKSCALE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "blockscale quantize --format nv")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert loaded([]) == [[0, []]]


def test_wrong_arguments():
    lines = [
        ["nonsense"],
        ["explain", "one", "2", "3"],
        ["explain", "1", "2", "64", "--format", "nvpf4"],
        ["explain", "1", "2", "64", "--dtype", "int8"],
        ["layout", "nvfp4", "256", "100"],
        ["quantize", "source"],
        ["quantize", "source", "target", "--format", "nvpf4"],
        ["quantize", "source", "target", "--format", "nvfp4", "--scale", "least"],
        ["quantize", "source", "target", "--format", "nvfp4", "--shard-size", "big"],
        ["generate", "model"],
        ["generate", "model", "--prompt", "x", "--dtype", "int4"],
        ["eval", "model", "--out", "x.gif"],
        ["warmup", "model", "--rows", "0"],
        ["tune"],
        ["tune", "--shape", "48x"],
        ["inspect", "--no-such-option"],
        ["doctor", "argument"],
        ["cache", "--clean"],
    ]
    assert loaded(*lines) == [[2, []]] * len(lines)


def test_the_library_is_loaded_by_its_first_name():
    code = (
        "import sys, blockscale as bs\n"
        "assert 'torch' not in sys.modules\n"
        "print(bs.NVFP4, 'torch' in sys.modules, bs.matmul is vars(bs)['matmul'])\n"
        "print(bs.compat.fp4_linear.__name__, {'matmul', 'NVFP4'} <= set(dir(bs)))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["nvfp4", "True", "True", "fp4_linear", "True"]


def test_a_name_that_is_not_there():
    import blockscale

    with pytest.raises(AttributeError, match="module 'blockscale' has no attribute 'matmull'"):
        _ = blockscale.matmull
    assert not hasattr(blockscale, "__wrapped__")
