"""Damaged and hostile files: one clear error that names the file, before a tensor is read."""

import json
import os
import struct
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs
from blockscale.checkpoint import load, save
from checkpoint.damage import rewrite_json

INDEX = "model.safetensors.index.json"


def hand_made(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def sharded(tmp_path):
    tensors = {f"l{i}.weight": bs.quantize(torch.randn(4, 64), bs.MXFP4) for i in range(3)}
    save(tensors, tmp_path / "x", shard_size=200)
    return tmp_path / "x"


def first_shard(folder):
    return sorted(folder.glob("*.safetensors"))[0]


@pytest.mark.fault(
    "a shard is cut off at any place",
    outcome="ValueError that names the file, before a tensor is read",
)
@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_truncated_shard(sharded, keep):
    shard = first_shard(sharded)
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(ValueError, match=f"{shard.name} is truncated or not a safetensors file"):
        load(sharded)


def test_not_safetensors_at_all(sharded):
    first_shard(sharded).write_bytes(b"\xff" * 1000)
    with pytest.raises(ValueError, match="truncated or not a safetensors file"):
        load(sharded)


@pytest.mark.fault(
    "the index names a file outside of its folder",
    outcome="ValueError; nothing outside is opened",
)
@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "", 7, "x.bin"]
)
def test_the_index_cannot_leave_its_folder(sharded, file):
    rewrite_json(sharded / INDEX, lambda index: index["weight_map"].update({"evil": file}))
    with pytest.raises(ValueError, match="places 'evil' in"):
        load(sharded)


@pytest.mark.fault(
    "a shard is missing",
    outcome="FileNotFoundError that names the tensor and the file",
)
def test_missing_shard(sharded):
    first_shard(sharded).unlink()
    with pytest.raises(FileNotFoundError, match="which is missing"):
        load(sharded)


def test_the_index_lists_what_is_not_there(sharded):
    name = first_shard(sharded).name
    rewrite_json(sharded / INDEX, lambda index: index["weight_map"].update({"ghost": name}))
    with pytest.raises(ValueError, match=r"places 'ghost' in .* which does not hold it"):
        load(sharded)


def test_an_index_whose_shards_are_gone_is_left_over_from_another_model(sharded, tmp_path):
    """transformers removes shards that it replaces by one file, and leaves the index."""
    for shard in sharded.glob("*.safetensors"):
        shard.unlink()
    newer = {"l0.weight": bs.quantize(torch.randn(4, 64), bs.MXFP4)}
    save(newer, tmp_path / "one")
    (tmp_path / "one" / "model.safetensors").rename(sharded / "model.safetensors")
    assert load(sharded) == newer


@pytest.mark.fault(
    "a folder has a model in one file and another in shards with an index",
    outcome="ValueError that names the two",
)
def test_two_models_in_a_folder(sharded, tmp_path):
    save({"l0.weight": bs.quantize(torch.randn(4, 64), bs.MXFP4)}, tmp_path / "one")
    (tmp_path / "one" / "model.safetensors").rename(sharded / "model.safetensors")
    with pytest.raises(ValueError, match=r"has two models, model\.safetensors and the shards"):
        load(sharded)


@pytest.mark.parametrize("which", [0, 1])
def test_of_a_tensor_in_two_shards_the_one_that_the_index_names_is_read(tmp_path, which):
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for number, (file, other) in enumerate(zip(shards, "bc", strict=True)):
        tensors = {"a": torch.full((2,), float(number)), other: torch.zeros(1)}
        save_file(tensors, tmp_path / file)
    weight_map = {"a": shards[which], "b": shards[0], "c": shards[1]}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text("{}")
    found = load(tmp_path)
    assert found.keys() == weight_map.keys()
    assert found["a"].tolist() == [which, which]


def test_the_index_misses_what_is_there(sharded):
    rewrite_json(sharded / INDEX, lambda index: index["weight_map"].pop("l1.weight_scale"))
    with pytest.raises(ValueError, match=r"holds 'l1.weight_scale', which .* does not list"):
        load(sharded)


@pytest.mark.fault("the index is damaged", outcome="ValueError that names the file")
@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "{}", '{"weight_map": []}', "\xff"])
def test_bad_index(sharded, text):
    (sharded / INDEX).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"index.json (is not JSON|must be a JSON|has no weight)"):
        load(sharded)


def test_missing_or_bad_config(sharded):
    (sharded / "config.json").write_text("{nonsense")
    with pytest.raises(ValueError, match=r"config.json is not JSON"):
        load(sharded)
    (sharded / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no config.json"):
        load(sharded)


def test_absurd_config(sharded):
    with (sharded / "config.json").open("r+b") as file:
        file.truncate(2**29)
    with pytest.raises(ValueError, match="536,870,912 bytes, more than a description can need"):
        load(sharded)


@pytest.mark.parametrize("config", [7, [], "x"])
def test_quantization_config_of_another_type(sharded, config):
    rewrite_json(sharded / "config.json", lambda c: c.update(quantization_config=config))
    with pytest.raises(ValueError, match="quantization_config must be an object"):
        load(sharded)


@pytest.mark.parametrize("method", ["gptq", "", None])
def test_unknown_method(sharded, method):
    change = {"quant_method": method}
    rewrite_json(sharded / "config.json", lambda c: c.update(quantization_config=change))
    with pytest.raises(ValueError, match="is not read here, only compressed-tensors, modelopt"):
        load(sharded)


def test_unknown_dtype(tmp_path):
    path = tmp_path / "x.safetensors"
    entry = {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}
    hand_made(path, {"a": entry}, b"ab")
    with pytest.raises(
        ValueError, match=r"'a' has dtype F4, which is not read|not a safetensors file"
    ):
        load(path)
    hand_made(path, {"a": {**entry, "dtype": "F99"}}, b"ab")
    with pytest.raises(ValueError, match="not a safetensors file"):
        load(path)


@pytest.mark.fault(
    "a header claims 2^80 values",
    outcome="ValueError before anything is allocated",
)
def test_absurd_sizes(tmp_path):
    path = tmp_path / "x.safetensors"
    hand_made(
        path, {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, b"1234"
    )
    with pytest.raises(ValueError, match="truncated or not a safetensors file"):
        load(path)


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"0 .safetensors files"):
        load(tmp_path)
    for name in "ab":
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(FileNotFoundError, match=r"2 .safetensors files and no"):
        load(tmp_path)


def test_more_dimensions_than_a_tensor_has(tmp_path):
    path = tmp_path / "x.safetensors"
    entry = {"dtype": "U8", "shape": [1] * 1000, "data_offsets": [0, 1]}
    hand_made(path, {"a": entry}, b"1")
    with pytest.raises(ValueError, match=r"x.safetensors: 'a' has 1000 dimensions, and at most 8"):
        load(path)


def test_an_empty_tensor_of_absurd_shape(tmp_path):
    path = tmp_path / "x.safetensors"
    hand_made(path, {"a": {"dtype": "U8", "shape": [0, 2**63], "data_offsets": [0, 0]}})
    with pytest.raises(ValueError, match=r"x.safetensors: 'a' has the shape .*, which no tensor"):
        load(path)


# --- files that are something else, or cannot be read ---


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"GGUF\x03\0\0\0", "is a GGUF file, which is not read here"),
        (b"PK\x03\x04", "is a pickle of torch, which is never opened"),
        (b"\x80\x02\x8a", "is a pickle of torch, which is never opened"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (b"<!DOCTYPE html>", "is a web page"),
    ],
)
@pytest.mark.fault(
    "a GGUF file, a pickle, a Git LFS pointer or a web page stands where weights should",
    outcome="ValueError that says which it is",
)
def test_another_kind_of_file_is_called_what_it_is(tmp_path, start, message):
    (tmp_path / "x.safetensors").write_bytes(start + bytes(range(100)))
    with pytest.raises(ValueError, match=f"x.safetensors {message}"):
        load(tmp_path / "x.safetensors")


@pytest.mark.fault("a folder's name is not UTF-8", outcome="ValueError that says so")
def test_a_name_that_is_not_utf8_is_said_to_be_the_reason(sharded):
    folder = sharded.with_name(os.fsdecode(b"\xff\xfe"))
    try:
        sharded.rename(folder)
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    with pytest.raises(ValueError, match="safetensors opens files by names in UTF-8 only"):
        load(folder)


@pytest.fixture
def nobody():
    """Without the rights of root, who may read everything."""
    if not hasattr(os, "seteuid"):
        pytest.skip("no file permissions as on Unix")
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


@pytest.mark.parametrize("file", ["model-00001-of-00003.safetensors", INDEX, "config.json"])
@pytest.mark.fault(
    "a file may not be read by this user",
    outcome="PermissionError that names the file",
)
def test_a_file_without_permission_is_not_said_to_be_missing(sharded, request, file):
    (sharded / file).chmod(0)
    for parent in sharded.parents:
        if parent.is_relative_to(Path(tempfile.gettempdir()) / "pytest-of-root"):
            parent.chmod(0o755)
    request.getfixturevalue("nobody")
    with pytest.raises(PermissionError, match=file):
        load(sharded)


@pytest.mark.fault(
    "config.json is a pipe that nobody writes to",
    outcome="ValueError; nothing waits",
)
def test_a_pipe_is_not_waited_for(sharded):
    (sharded / "config.json").unlink()
    os.mkfifo(sharded / "config.json")
    with pytest.raises(ValueError, match=r"config.json is not a regular file"):
        load(sharded)
