"""Every reader of files, and how its results are checked where it does not refuse."""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_plainly

import blockscale as bs
from blockscale.checkpoint import Checkpoint, load, read_importance
from blockscale.checkpoint.journal import JOURNAL, under_construction
from blockscale.runtime import proven, tuned
from blockscale.runtime.cuda.cache import Cache, Entry
from blockscale.runtime.result_file import read as read_results
from fuzz import corpus
from fuzz.harness import Folder, Reader

_CODE = bytes(range(200))
_TASK = {"settings": {"format": "mxfp4"}, "source": {"model.safetensors": [100, 5]}}


def _load(folder: Path, sound: Folder, damaged: Folder) -> None:
    """A folder, or the one file in it."""
    path = folder if corpus.CONFIG in damaged else folder / corpus.SINGLE
    found = load(path)
    size = sum(map(len, damaged.values()))
    held = sum(value.nbytes for value in found.values())
    assert held <= 64 * size, f"{held:,} bytes from files of {size:,}"
    for value in found.values():
        if isinstance(value, bs.QTensor):
            value.dequantize()
    weights = [name for name in sound if name.endswith(".safetensors")]
    if weights and all(sound[name] == damaged[name] for name in weights):
        _check_same(found, _sound_tensors(tuple(sound.items())))


def _cut_and_load(folder: Path, sound: Folder, damaged: Folder) -> None:
    """Parts make up the whole. Where that is refused they are, and the file is named."""
    checkpoint = Checkpoint(folder if corpus.CONFIG in damaged else folder / corpus.SINGLE)
    cut = {
        (name, axis): _read_two(checkpoint, name, axis)
        for name, stored in checkpoint.tensors.items()
        for axis in range(len(stored.shape))
    }
    for found in cut.values():
        assert not isinstance(found, str) or str(folder) in found, found
    _load(folder, sound, damaged)
    for (name, axis), found in cut.items():
        whole = checkpoint.read(name)
        if isinstance(whole, bs.QTensor) and not isinstance(found, str):
            assert bs.cat(found, axis) == whole, name
        elif isinstance(whole, torch.Tensor) and not isinstance(found, str):
            pairs = zip(found, whole.chunk(2, axis), strict=True)
            assert all(_bytes(a) == _bytes(b) for a, b in pairs), name


def _read_two(checkpoint: Checkpoint, name: str, axis: int) -> list[object] | str:
    """The parts of two ranks, or why there are none."""
    try:
        return [checkpoint.read_shard(name, axis, rank, 2) for rank in range(2)]
    except ValueError as error:
        return str(error)


def _bytes(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


def _check_same(found: dict[str, object], wanted: dict[str, object]) -> None:
    """Where only a description was damaged, the tensors that are read are those of before."""
    for name, value in found.items():
        before = wanted.get(name)
        if isinstance(value, bs.QTensor) and isinstance(before, bs.QTensor):
            assert value.format != before.format or value == before, name
        elif isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
            assert torch.equal(value, before), name


@cache
def _sound_tensors(files: tuple[tuple[str, bytes], ...]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files:
            (Path(folder) / name).write_bytes(content)
        is_folder = corpus.CONFIG in dict(files)
        found = load(folder if is_folder else Path(folder) / corpus.SINGLE)
        return {name: _copied(value) for name, value in found.items()}


def _copied(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _read_header(folder: Path, sound: Folder, damaged: Folder) -> None:
    """As safetensors itself reads the bytes, where both do."""
    found = load(folder / corpus.SINGLE)
    try:
        wanted = load_plainly(damaged[corpus.SINGLE])
    except (SafetensorError, KeyError, RuntimeError):
        return
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (wanted[name].dtype, wanted[name].shape), name
        assert torch.equal(
            tensor.view(-1).view(torch.uint8), wanted[name].view(-1).view(torch.uint8)
        )


def _read_state(folder: Path, sound: Folder, damaged: Folder) -> None:
    try:
        content = corpus.with_state(damaged["parts.safetensors"], damaged["state.json"])
    except (ValueError, TypeError, RecursionError, OverflowError, struct.error):
        content = damaged["parts.safetensors"]  # too damaged to add to
    for name in ("parts.safetensors", "state.json"):
        (folder / name).unlink()
    (folder / corpus.SINGLE).write_bytes(content)
    _load(folder, {}, {corpus.SINGLE: content, corpus.CONFIG: damaged[corpus.CONFIG]})


def _read_importance(folder: Path, sound: Folder, damaged: Folder) -> None:
    for values in read_importance(folder / corpus.SINGLE).values():
        assert values.is_floating_point()
        assert not bool((values < 0).any())


def _read_journal(folder: Path, sound: Folder, damaged: Folder) -> None:
    """A file counts as finished only with the bytes whose digest the journal has."""
    partial = folder / "out.partial"
    partial.mkdir()
    for name in damaged:
        (folder / name).rename(partial / name)
    (partial / JOURNAL).write_bytes(damaged[JOURNAL])
    with under_construction(folder / "out", _TASK) as journal:
        done = journal.is_finished(corpus.SINGLE)
    content = json.loads(damaged[JOURNAL].decode("utf-8-sig"))
    assert content["task"].items() >= _TASK.items()
    digest = hashlib.sha256(damaged[corpus.SINGLE]).hexdigest()
    assert done == (content["finished"].get(corpus.SINGLE) == digest)


def _read_tuned(folder: Path, sound: Folder, damaged: Folder) -> None:
    told: list[str] = []
    _, results = read_results(folder / "tuned.json", tuned.parse, "tune", told.append)
    assert results or told or json.loads(damaged["tuned.json"])["results"] == []
    for each in results:
        assert each.gain > 0
        assert each.key
    assert all(str(folder) in text for text in told)


def _read_proven(folder: Path, sound: Folder, damaged: Folder) -> None:
    told: list[str] = []
    _, proofs = read_results(folder / "proven.json", proven.parse, "prove", told.append)
    assert proofs or told or json.loads(damaged["proven.json"])["results"] == []
    assert all(isinstance(each.failure, str) and each.key for each in proofs)
    assert all(str(folder) in text for text in told)


def _read_cubin(folder: Path, sound: Folder, damaged: Folder) -> None:
    """Nothing, or the very code: its checksum stands before it."""
    kept = Cache(folder, 2**20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for entry, size in kept.entries():
            assert isinstance(entry, Entry)
            assert size == len(damaged["key.cubin"])
        assert kept.read("key") in (None, _CODE)


def _journals() -> list[Folder]:
    shard = corpus.plain()[0][corpus.SINGLE]
    finished = {corpus.SINGLE: hashlib.sha256(shard).hexdigest()}
    journal = corpus.as_json({"task": _TASK, "finished": finished})
    return [{JOURNAL: journal, corpus.SINGLE: shard}]


def _cubins() -> list[Folder]:
    entry = {"build": "a.cu:b", "arch": "sm_90", "nvrtc": "13.0"}
    rest = corpus.as_json(entry) + b"\n" + _CODE
    return [{"key.cubin": hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest}]


@cache
def readers() -> dict[str, Reader]:
    found = [
        Reader("header", corpus.plain(), _read_header),
        Reader("index", corpus.sharded(), _load),
        Reader("checkpoint", corpus.quantised(), _cut_and_load),
        Reader("bitsandbytes", corpus.bitsandbytes(), _read_state),
        Reader("importance", corpus.importance(), _read_importance),
        Reader("journal", _journals(), _read_journal),
        Reader("tuned", corpus.tuned(), _read_tuned),
        Reader("proven", corpus.proven(), _read_proven),
        Reader("cubin", _cubins(), _read_cubin),
    ]
    return {reader.name: reader for reader in found}
