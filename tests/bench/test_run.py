"""The command as a user runs it. Nothing here depends on how long anything takes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import blockscale as bs
from bench.conversions import only_reference
from bench.problems import (
    CUDA_QUICK_ROWS,
    CUDA_QUICK_SHAPES,
    CUDA_ROWS,
    CUDA_SHAPES,
    QUICK_ROWS,
    ROWS,
    quick_shapes,
    shapes,
)
from bench.results import BASELINE, TIMED, load
from bench.rivals import OTHERS, field
from bench.run import main, parse
from blockscale import ops
from blockscale.kernels import KERNELS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def _small_rings(monkeypatch):
    monkeypatch.setattr("bench.timing.ring_bytes", lambda rivals: 1)


def test_help():
    result = subprocess.run(
        [sys.executable, "-m", "bench.run", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0
    for option in (
        "--device",
        "--threads",
        "--shapes",
        "--rows",
        "--formats",
        "--seconds",
        "--rivals",
        "--out",
    ):
        assert option in result.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--device", "tpu"], "--device"),
        (["--threads", "0"], "'0' is not a positive whole number"),
        (["--shapes", "4096"], "'4096' is not quick, all, or NxK"),
        (["--shapes", "64x100"], "multiple of 64"),
        (["--rows", "1,-4"], "'-4' is not a positive whole number"),
        (["--formats", "nvfp4,int3"], "'int3' is not one of nvfp4,mxfp4"),
        (["--seconds", "nan"], "'nan' is not a positive number of seconds"),
        (["--conversions", "some"], "'some' is not"),
        (["--rivals", "torch"], "'torch' is not none or one of humming,bitsandbytes"),
        (["--device", "cuda", "--rows", "0"], "'0' is not a positive whole number"),
        (["--no-store", "--out", "run.json"], "not allowed with"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(capsys, arguments, complaint):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert len(error.strip().splitlines()) == 2  # how it is used, and what is wrong


def test_shapes_and_rows_by_name():
    assert parse([]).shapes == quick_shapes()
    assert parse(["--shapes", "all"]).shapes == list(shapes())
    assert parse(["--shapes", "64x128,quick,64x128"]).shapes == [(64, 128), *quick_shapes()]
    assert parse([]).rows == list(QUICK_ROWS)
    assert parse(["--rows", "all"]).rows == list(ROWS)
    assert parse(["--rows", "4,1"]).rows == [4, 1]
    assert parse(["--formats", "KBIT2,nvfp4"]).formats == [bs.KBIT2, bs.NVFP4]


def test_names_mean_other_things_on_a_gpu():
    quick = parse(["--device", "cuda"])
    assert quick.shapes == list(CUDA_QUICK_SHAPES)
    assert quick.rows == list(CUDA_QUICK_ROWS)
    assert quick.seconds < parse([]).seconds
    assert quick.conversions == ()
    assert quick.rivals == OTHERS
    everything = parse(["--device", "cuda", "--shapes", "all", "--rows", "all", "--rivals", "none"])
    assert everything.shapes == list(CUDA_SHAPES)
    assert everything.rows == list(CUDA_ROWS)
    assert everything.rivals == ()


@pytest.mark.usefixtures("_small_rings")
def test_a_whole_run(tmp_path, capsys):
    path = tmp_path / "run.json"
    options = "--shapes 64x128 --rows 1,4 --seconds 0.005 --formats nvfp4,kbit3 --conversions 32x64"
    threads = torch.get_num_threads()
    assert main([*options.split(), "--threads", str(threads), "--out", str(path)]) == 0
    run, shown = load(path), capsys.readouterr().out
    assert [(case.n, case.k, case.m) for case in run.cases] == [(64, 128, 1), (64, 128, 4)]
    ours = ["NVFP4", "NVFP4, int8 x", "KBIT3"]
    for case in run.cases:
        for name in (BASELINE, "torch float32", *ours):
            entry = case.entry(name)
            assert entry.outcome == TIMED, entry.reason
            assert entry.ratio is not None
            assert name in shown
        assert all(case.entry(name).kernel for name in ours)
        assert case.ceiling is not None
    everyone = {rival.name for rival in field([bs.NVFP4, bs.KBIT3], threads)}
    assert everyone == {entry.rival for entry in run.cases[0].entries} | set(run.missing)
    assert all(run.missing.values())
    assert [conversion.outcome for conversion in run.conversions] == [TIMED] * 4
    assert run.machine["threads"] == threads
    assert run.versions["torch"]


@pytest.mark.usefixtures("_small_rings")
def test_nothing_is_stored_if_so_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bench.run.FOLDER", tmp_path / "results")
    options = "--shapes 64x128 --rows 1 --seconds 0.001 --formats nvfp4 --conversions none"
    assert main([*options.split(), "--no-store"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert "stored" not in capsys.readouterr().out


@pytest.mark.usefixtures("_small_rings")
def test_a_run_is_stored_by_date_and_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.run.FOLDER", tmp_path)
    options = "--shapes 64x128 --rows 1 --seconds 0.001 --formats nvfp4 --conversions none"
    assert main([*options.split(), "--commit", "feed"]) == 0
    (path,) = tmp_path.iterdir()
    run = load(path)
    assert run.commit == "feed"
    assert path.name.startswith(run.date[:10].replace("-", ""))
    assert path.name.endswith(f"-{run.machine['threads']}-threads.json")


def test_a_shape_beyond_memory_is_skipped_by_name(monkeypatch, capsys):
    monkeypatch.setattr("bench.timing.available_memory", lambda: 10)
    options = "--shapes 64x128 --rows 1 --conversions none --no-store"
    assert main(options.split()) == 0
    assert "skipped: 64 x 128 (needs about" in capsys.readouterr().out


def test_the_reference_alone_is_left_for_a_while(monkeypatch):
    every = KERNELS["quantize"]
    asked = []
    real = every[-1].bind
    monkeypatch.setattr(every[-1], "bind", lambda *args: asked.append(1) or real(*args))
    with only_reference("quantize"):
        assert KERNELS["quantize"] == every[-1:]
        bs.quantize(torch.randn(2, 16), bs.NVFP4)
    assert asked == [1]
    assert KERNELS["quantize"] == every
    assert ops.choose.cache_info().currsize == 0
