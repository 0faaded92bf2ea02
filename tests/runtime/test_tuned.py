"""Results of tuning on the disk: kept, found again, private, and safe between processes."""

import json
import multiprocessing
import os
import warnings
from dataclasses import replace

import pytest

from blockscale.runtime import Limits, result_file, result_folder, tuned

HERE = tuned.Machine("NVIDIA H200, 132 SMs, 140 GiB", "sm_90")
THERE = tuned.Machine("NVIDIA L4, 58 SMs, 22 GiB", "sm_89")


def result(m=1, microseconds=10.0, sources="abc"):
    return tuned.Result(
        problem={"verb": "matmul", "m": m, "n": 4096, "k": 4096},
        sources=sources,
        best=tuned.Measured("stream", {"columns": 1, "stages": 3}, microseconds),
        rule=tuned.Measured("stream", {"columns": 1, "stages": 2}, 12.0),
        date="2026-11-15",
        versions={"torch": "2.11.0"},
    )


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cache"))
    result_folder.warn_once.cache_clear()
    tuned.forget()
    yield tmp_path / "cache" / "tuned"
    tuned.forget()


def found(machine=HERE, m=1, sources="abc"):
    return tuned.find(machine, sources, result(m).problem)


def test_what_is_kept_is_found(folder):
    assert found() is None
    path = tuned.keep(HERE, result())
    assert path.parent == folder
    assert found() == result()
    assert found(m=2) is None
    assert found(sources="changed") is None
    assert found(THERE) is None


def test_a_person_can_read_it(folder):
    path = tuned.keep(HERE, result())
    assert path.name.startswith("nvidia-h200-132-sms-140-gib-sm-90-")
    content = json.loads(path.read_text())
    assert content["device"] == HERE.device
    assert content["results"][0]["best"]["config"] == {"columns": 1, "stages": 3}
    assert path.read_text().count("\n") > 20


def test_a_later_result_takes_the_place_of_an_earlier_one():
    tuned.keep(HERE, result(microseconds=9.0))
    tuned.keep(HERE, result(m=2))
    tuned.keep(HERE, result(sources="older"))
    tuned.keep(HERE, result(microseconds=8.0))
    assert len(tuned.results()) == 3
    assert found().best.microseconds == 8.0
    assert found(sources="older") is not None


def test_other_devices_are_left_alone():
    other = tuned.keep(THERE, result(microseconds=3.0))
    before = other.read_bytes()
    tuned.keep(HERE, result())
    assert other.read_bytes() == before
    assert found(THERE).best.microseconds == 3.0


def test_gains_below_two_percent_do_not_win():
    assert result(microseconds=10.0).wins
    assert not result(microseconds=11.9).wins
    assert result(microseconds=12.0).gain == 1.0


def test_it_is_read_once(monkeypatch):
    tuned.keep(HERE, result())
    read = []
    monkeypatch.setattr(
        result_folder, "read", lambda *args: read.append(args) or result_file.read(*args)
    )
    for _ in range(3):
        found()
    assert len(read) == 1


def test_clearing(folder):
    assert tuned.clear() == 0
    tuned.keep(HERE, result())
    tuned.keep(THERE, result(m=2))
    assert tuned.clear() == 2
    assert found() is None
    assert not list(folder.glob("*.json"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Expecting value"),
        (b'{"version": 1', "Expecting"),
        (b"\xff\xfe", "is no UTF-8"),
        (b"[]", "must be a JSON object"),
        (b'{"version": 2}', "its version is 2, not 1"),
        (b'{"version": true}', "its 'version' is True"),
        (b'{"version": 1, "device": 3}', "its 'device' is 3"),
        (b'{"version": 1, "device": "a", "target": "b", "results": {}}', "its 'results' is {}"),
        (b"[" * 100_000, "nested more than 32 deep"),
    ],
)
def test_a_damaged_file_costs_a_warning(content, said):
    path = tuned.keep(HERE, result())
    tuned.keep(THERE, result())
    path.write_bytes(content)
    tuned.forget()
    with pytest.warns(RuntimeWarning, match=said) as warned:
        assert found() is None
    assert str(path) in str(warned[0].message)
    assert found(THERE) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned.keep(HERE, result(m=3))  # told once
    assert found(m=3) is not None


def test_an_absurdly_large_file_is_not_read(monkeypatch):
    tuned.keep(HERE, result())
    monkeypatch.setattr(result_file, "_LIMITS", Limits(nbytes=100, values=100))
    tuned.forget()
    with pytest.warns(RuntimeWarning, match="it has [0-9]+ bytes"):
        assert found() is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda entry: entry.pop("best"), "its 'best' is None"),
        (lambda entry: entry["best"].update(microseconds=0), "its 'microseconds' is 0"),
        (lambda entry: entry["best"].update(microseconds=10**400), "its 'microseconds' is 1000"),
        (lambda entry: entry["best"].update(microseconds=float("nan")), "its .* is nan"),
        (lambda entry: entry["rule"].update(microseconds="12"), "its 'microseconds' is '12'"),
        (lambda entry: entry["best"].update(config=[1]), r"its 'config' is \[1\]"),
        (lambda entry: entry.update(problem="matmul"), "its 'problem' is 'matmul'"),
    ],
)
def test_a_damaged_result_costs_itself_and_a_warning(change, said):
    tuned.keep(HERE, result(m=1))
    path = tuned.keep(HERE, result(m=2))
    content = json.loads(path.read_text())
    change(content["results"][0])
    path.write_text(json.dumps(content))
    tuned.forget()
    with pytest.warns(RuntimeWarning, match=f"result 0 is not used, since {said}"):
        assert found(m=1) is None
    assert found(m=2) is not None


def test_a_folder_that_others_may_write_to_is_not_used(folder):
    tuned.keep(HERE, result())
    folder.chmod(0o777)
    tuned.forget()
    with pytest.warns(RuntimeWarning, match="not used, since others may write there"):
        assert found() is None
    with pytest.raises(RuntimeError, match="cannot keep its results there, since others may write"):
        tuned.keep(HERE, result())


def test_a_folder_that_cannot_be_made_is_an_error_before_anything_is_measured(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(RuntimeError, match="BLOCKSCALE_CACHE names another folder"):
        tuned.check_storable()


def test_the_folder_around_it_is_private_too(folder):
    before = os.umask(0o002)
    try:
        tuned.keep(HERE, result())
    finally:
        os.umask(before)
    for each in (folder, folder.parent):
        assert each.stat().st_mode & 0o777 == 0o700


def _keep_many(first, start):
    start.wait()
    for m in range(first, first + 25):
        tuned.keep(HERE, result(m))


def test_two_processes_lose_nothing_of_each_other():
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    writers = [context.Process(target=_keep_many, args=(i * 25, start)) for i in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert {each.problem["m"] for each in tuned.results().values()} == set(range(50))


def test_a_write_that_fails_leaves_the_old_file(folder, monkeypatch):
    path = tuned.keep(HERE, result())
    before = path.read_bytes()
    monkeypatch.setattr(result_folder, "to_text", lambda *_: "\ud800")  # cannot be encoded
    with pytest.raises(UnicodeEncodeError):
        tuned.keep(HERE, replace(result(), date="2027-01-01"))
    assert path.read_bytes() == before
    assert not list(folder.glob("*.unfinished"))
