"""`blockscale cache`: what is kept of compiled kernels, and removing it."""

import pytest
from typer.testing import CliRunner

from blockscale import cli
from blockscale.cli import machine
from blockscale.runtime.cuda import Entry, open_cache


def run(*args):
    return (
        CliRunner()
        .invoke(cli.commands, ["cache", *args], catch_exceptions=False, env={"COLUMNS": "120"})
        .output
    )


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cubins"))
    monkeypatch.setenv("BLOCKSCALE_CACHE_MB", "7")
    return tmp_path / "cubins"


@pytest.fixture
def _some_kernels():
    cache = open_cache()
    for key, build, arch in [
        ("a", "stream.cu:stream [ROWS=1]", "sm_80"),
        ("b", "stream.cu:stream [ROWS=2]", "sm_80"),
        ("c", "stream.cu:stream [ROWS=1]", "sm_90a"),
        ("d", "pack.cu:pack", "sm_80"),
    ]:
        cache.write(key, Entry(build, arch, "13.0"), bytes(2**19))


@pytest.mark.usefixtures("_some_kernels")
def test_kernels_are_counted_by_source_and_target(folder):
    out = run()
    assert f"{folder}: 4 kernels, 2.0 of at most 7 MiB" in out
    rows = [line.split() for line in out.splitlines() if ".cu" in line]
    assert [row[:4] for row in rows] == [
        ["pack.cu", "sm_80", "13.0", "1"],
        ["stream.cu", "sm_80", "13.0", "2"],
        ["stream.cu", "sm_90a", "13.0", "1"],
    ]
    sizes = [int(row[4].replace(",", "")) for row in rows]
    assert sum(sizes) == sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.usefixtures("_some_kernels")
def test_clearing(folder):
    assert f"removed 4 kernels from {folder}" in run("--clear")
    assert not list(folder.iterdir())
    assert f"{folder}: 0 kernels, 0.0 of at most 7 MiB" in run()


def test_where_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE_MB", "0")
    with pytest.raises(RuntimeError, match="compiled kernels are not kept"):
        run()


@pytest.mark.usefixtures("_some_kernels")
def test_doctor_tells_of_it_and_of_the_compiler(folder, monkeypatch):
    out = CliRunner().invoke(cli.commands, ["doctor"], catch_exceptions=False).output
    assert f"CUDA kernels  {folder}: 4 kernels" in out
    assert "NVRTC         " in out
    assert "CUDA driver   " in out
    monkeypatch.setattr(machine, "load_nvrtc", lambda: "no NVRTC: how to get it")
    monkeypatch.setenv("BLOCKSCALE_CACHE_MB", "0")
    out = CliRunner().invoke(cli.commands, ["doctor"], catch_exceptions=False).output
    assert "NVRTC         no NVRTC: how to get it" in out
    assert "CUDA kernels  are not kept on the disk" in out
