"""Interrupted conversions: they end with the same bytes, and go on with nothing but their own."""

import os
from types import SimpleNamespace

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import Settings, convert, plan_conversion, run_plan, shards
from blockscale.checkpoint.journal import JOURNAL
from checkpoint.models import bytes_of, llama, write_model

SETTINGS = Settings(bs.MXFP4, shard_size=10_000)


class Crash(BaseException):
    """Not an Exception, so that nothing but the end of the process would stop at it."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A source and what comes of it."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("whole")
    source = write_model(folder / "source", llama(1), shards=2)
    run_plan(plan_conversion(source, SETTINGS), folder / "out")
    return source, bytes_of(folder / "out")


@pytest.mark.fault(
    "quantising crashes at any of its syncs to disk",
    outcome="run again, it ends with the same bytes",
)
def test_a_crash_at_any_sync_resumes_to_the_same_bytes(uninterrupted, tmp_path, monkeypatch):
    """Every file and folder is synced when it is done: stop at the first, the second, ..."""
    source, wanted = uninterrupted
    fsync, left = os.fsync, 0

    def crash(handle):
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        fsync(handle)

    monkeypatch.setattr(os, "fsync", crash)
    for stop in range(1000):
        target, left = tmp_path / str(stop), stop
        try:
            run_plan(plan_conversion(source, SETTINGS), target)
        except Crash:
            complete = target.exists() and not (target / JOURNAL).exists()
        else:
            break
        left = 10**9
        if not complete:
            run_plan(plan_conversion(source, SETTINGS), target)
        assert bytes_of(target) == wanted
        assert not target.with_name(f"{stop}.partial").exists()
    assert stop > 15


def interrupt(source, target, monkeypatch, after=2):
    """Run until so many files are finished."""
    plain, done = shards.write_shard, []

    def stopping(*args):
        if len(done) == after:
            raise Crash
        done.append(args)
        return plain(*args)

    plan = plan_conversion(source, SETTINGS)
    with monkeypatch.context() as patched:
        patched.setattr(convert, "write_shard", stopping)
        with pytest.raises(Crash):
            run_plan(plan, target)
    return target.with_name(f"{target.name}.partial")


@pytest.mark.fault(
    "a finished file of an interrupted run is damaged",
    outcome="found by its sha256 and made again",
)
def test_a_damaged_finished_file_is_made_again(uninterrupted, tmp_path, monkeypatch):
    source, wanted = uninterrupted
    partial = interrupt(source, tmp_path / "out", monkeypatch)
    damaged, sound = sorted(partial.glob("*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    inode = sound.stat().st_ino
    run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    assert bytes_of(tmp_path / "out") == wanted
    assert (tmp_path / "out" / sound.name).stat().st_ino == inode


def test_other_settings_do_not_resume(uninterrupted, tmp_path, monkeypatch):
    source, wanted = uninterrupted
    interrupt(source, tmp_path / "out", monkeypatch)
    other = Settings(bs.MXFP4, scale="absmax", shard_size=10_000)
    with pytest.raises(
        ValueError, match=r"otherwise \(settings: scale was 'mse' and is 'absmax'\)"
    ):
        run_plan(plan_conversion(source, other), tmp_path / "out")
    run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    assert bytes_of(tmp_path / "out") == wanted


@pytest.mark.fault(
    "the source changes between an interrupted run and the next",
    outcome="ValueError that says what changed",
)
def test_another_source_does_not_resume(tmp_path, monkeypatch):
    source = write_model(tmp_path / "source", llama(1))
    interrupt(source, tmp_path / "out", monkeypatch)
    shard = next(source.glob("*.safetensors"))
    os.utime(shard, ns=(0, 0))
    with pytest.raises(ValueError, match=r"begun otherwise \(source: model-00001"):
        run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")


@pytest.mark.parametrize("file", ["hf_quant_config.json", "model.safetensors.index.json"])
def test_every_description_that_was_read_counts_as_the_source(tmp_path, monkeypatch, file):
    """Or that was looked for: a file that appears later may change the result."""
    source = write_model(tmp_path / "source", llama(1))
    interrupt(source, tmp_path / "out", monkeypatch)
    before = (source / file).read_text() if (source / file).exists() else "{}"
    (source / file).write_text(before + " ")
    with pytest.raises(ValueError, match=rf"begun otherwise \(source: {file} was"):
        run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")


@pytest.mark.fault(
    "a run fails before it has finished a file: no space, say",
    outcome="nothing is left that would block the next command",
)
def test_a_run_that_finished_nothing_leaves_nothing(uninterrupted, tmp_path, monkeypatch):
    source, wanted = uninterrupted
    with monkeypatch.context() as patched:
        patched.setattr(convert.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        with pytest.raises(OSError, match=r"its disk has 0.00 GB free"):
            run_plan(plan_conversion(source, Settings(bs.NVFP4)), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    assert bytes_of(tmp_path / "out") == wanted


def test_a_journal_alone_binds_nobody(uninterrupted, tmp_path):
    """A run that was killed early left nothing else."""
    source, wanted = uninterrupted
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / JOURNAL).write_text('{"task": {"settings": 1}, "finished": {}}')
    run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    assert bytes_of(tmp_path / "out") == wanted


@pytest.mark.parametrize("text", ["[]", "{}", '{"task": 3}', '{"task": {}, "finished": []}', "{"])
@pytest.mark.fault(
    "the journal of an interrupted run is damaged",
    outcome="ValueError that names it; finished files stay",
)
def test_a_damaged_journal_is_named(uninterrupted, tmp_path, monkeypatch, text):
    source, _ = uninterrupted
    partial = interrupt(source, tmp_path / "out", monkeypatch)
    (partial / JOURNAL).write_text(text)
    with pytest.raises(ValueError, match=JOURNAL):
        run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    assert len(list(partial.glob("*.safetensors"))) == 2


def test_two_processes_do_not_write_one_folder(uninterrupted, tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    source, _ = uninterrupted
    partial = interrupt(source, tmp_path / "out", monkeypatch)
    handle = os.open(partial, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(RuntimeError, match="is being written by another process"):
        run_plan(plan_conversion(source, SETTINGS), tmp_path / "out")
    os.close(handle)


def test_a_strange_partial_folder_is_left_alone(uninterrupted, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "diary.txt").write_text("x")
    with pytest.raises(FileExistsError, match=r"holds diary.txt and no"):
        run_plan(plan_conversion(uninterrupted[0], SETTINGS), tmp_path / "out")
    assert (tmp_path / "out.partial" / "diary.txt").exists()


def test_progress_reaches_the_end_also_after_a_resume(uninterrupted, tmp_path, monkeypatch):
    source, _ = uninterrupted
    interrupt(source, tmp_path / "out", monkeypatch)
    plan = plan_conversion(source, SETTINGS)
    seen = []
    run_plan(plan, tmp_path / "out", lambda size, count: seen.append((size, count)))
    assert sum(size for size, _ in seen) == sum(unit.nbytes for unit in plan.units)
    assert sum(count for _, count in seen) == len(plan.checkpoint.tensors)
