"""Several writers of one path, in threads and in processes: each result is somebody's whole."""

import os
import threading

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import load, save
from blockscale.runtime import replacing
from fresh_process import FORKING

WRITERS, TIMES = 4, 25


def tensors(value):
    """The same number everywhere, so that a mixture would show."""
    return {name: torch.full((16, 64), float(value)) for name in "abcd"}


def check_whole(path):
    found = load(path)
    assert found.keys() == tensors(0).keys()
    assert len({float(number) for tensor in found.values() for number in tensor.unique()}) == 1


def write_often(path, value):
    for _ in range(TIMES):
        save(tensors(value), path)


@pytest.mark.fault(
    "four threads save one file 25 times each, while it is read",
    outcome="no error; every reading is one writer's whole, and nothing else is left",
)
def test_threads_that_save_one_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save(tensors(9), path)
    errors = []

    def write(value):
        try:
            write_often(path, value)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(value,)) for value in range(WRITERS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        check_whole(path)
    for thread in threads:
        thread.join()
    assert errors == []
    check_whole(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.fault(
    "two processes save one file 25 times each, while it is read",
    outcome="no error; every reading is one writer's whole, and nothing else is left",
)
def test_processes_that_save_one_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save(tensors(9), path)
    processes = [FORKING.Process(target=write_often, args=(path, value)) for value in range(2)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        check_whole(path)
    assert [process.exitcode for process in processes] == [0, 0]
    check_whole(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.fault(
    "four threads save one folder",
    outcome="the first wins whole; the others get FileExistsError and leave nothing",
)
def test_threads_that_save_one_folder(tmp_path):
    path, outcomes = tmp_path / "x", []

    def write(value):
        try:
            save(tensors(value), path)
            outcomes.append("saved")
        except FileExistsError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=write, args=(value,)) for value in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = f"{path} exists already: choose another name, or remove it first"
    assert sorted(outcomes) == [refused] * (WRITERS - 1) + ["saved"]
    check_whole(path)
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


@pytest.mark.fault(
    "a link lies where a file is to be written, or under the name that is used meanwhile",
    outcome="the link is replaced, or refused; where it leads is not touched",
)
def test_links_are_not_written_through(tmp_path, monkeypatch):
    precious, path = tmp_path / "precious", tmp_path / "x.safetensors"
    precious.write_text("kept")
    path.symlink_to(precious)
    save(tensors(1), path)
    assert not path.is_symlink()
    check_whole(path)
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (tmp_path / ".guessed.unfinished").symlink_to(precious)
    with pytest.raises(FileExistsError), replacing(path) as file:
        file.write(b"x")
    assert precious.read_text() == "kept"
    check_whole(path)


def test_files_have_the_permissions_that_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        save({"a": bs.quantize(torch.ones(2, 64), "mxfp4")}, tmp_path / "x.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == 0o640
