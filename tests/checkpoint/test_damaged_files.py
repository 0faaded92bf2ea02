"""Damaged and hostile files: one clear error that names the file, before a tensor is read."""

import json
import os
import struct
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.checkpoint import Checkpoint, load, save

INDEX = "model.safetensors.index.json"


def rewrite_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rewrite_tensors(path, change):
    tensors = load_file(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


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


# --- each dialect's own parts ---


def one(tmp_path, fmt, dialect):
    save({"a.weight": bs.quantize(torch.randn(4, 64), fmt)}, tmp_path / "x", dialect=dialect)
    return tmp_path / "x"


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, change):
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


CT = "compressed-tensors"


@pytest.mark.parametrize(
    ("name", "dialect", "change", "message"),
    [
        ("nvfp4", CT, drop("a.weight_packed"), "a has quantised weights but no weight"),
        ("nvfp4", CT, drop("a.weight_global_scale"), "weight_scale must be torch.uint8"),
        ("nvfp4", CT, put("a.weight_global_scale", lambda t: t.repeat(2)), "must be one number"),
        ("nvfp4", CT, put("a.weight_global_scale", lambda t: 0 * t), "a.weight: .*positive"),
        (
            "mxfp4",
            CT,
            put("a.weight_scale", lambda t: t[:, :1]),
            r"a.weight_packed holds \[4, 64\], so a.weight_scale must be \[4, 2\], got \[4, 1\]",
        ),
        ("mxfp8", CT, put("a.weight", torch.Tensor.float), "must be torch.float8_e4m3fn, got"),
        ("nvfp4", "modelopt", drop("a.weight"), "a has quantised weights but no weight"),
        ("nvfp4", "modelopt", put("a.weight_scale", torch.Tensor.float), "float8_e4m3fn, got"),
        ("nvfp4", "modelopt", put("a.weight_scale_2", lambda t: t.repeat(3)), "one number"),
        ("mxfp8", "modelopt", put("a.weight", lambda t: t[:, :32]), r"must be \[4, 1\]"),
        ("kbit4", "blockscale", drop("a.weight_codebook"), "is kbit4 but has no codebook"),
        ("kbit4", "blockscale", put("a.weight_codebook", lambda t: -t), "a.weight: .*must ascend"),
        ("kbit4", "blockscale", put("a.weight_scale", torch.Tensor.int), "must have dtype"),
        ("kbit4", "blockscale", put("a.weight_scale", lambda t: t[:3]), "a.weight_scale must"),
        ("kbit4", "blockscale", put("a.weight_tensor_scale", lambda t: t / 0), "positive"),
    ],
)
def test_parts_that_do_not_fit(name, dialect, change, message, tmp_path):
    folder = one(tmp_path, name, dialect)
    rewrite_tensors(folder / "model.safetensors", change)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_blockscale_versions_and_names(tmp_path):
    folder = one(tmp_path, "kbit4", "blockscale")
    config = folder / "config.json"
    before = config.read_text()
    for change, message in [
        ({"version": 3}, "layout version 3 is not read"),
        ({"version": 1, "tensors": None}, "lists no tensors"),
        ({"version": 1, "tensors": {"a.weight": "kbit9"}}, "unknown format 'kbit9'"),
        ({"version": 1, "tensors": {"b.weight": "kbit4"}}, "b.weight is kbit4 but has no codes"),
    ]:
        config.write_text(before)
        rewrite_json(config, lambda c, change=change: c["quantization_config"].update(change))
        with pytest.raises(ValueError, match=message):
            load(folder)


@pytest.mark.parametrize("label", ["int-quantized", 7, ["nvfp4"], {"a": 1}])
def test_compressed_tensors_formats_that_are_not_ours(tmp_path, label):
    folder = one(tmp_path, "mxfp4", CT)
    group = {"format": label}
    rewrite_json(
        folder / "config.json", lambda c: c["quantization_config"]["config_groups"].update(g=group)
    )
    with pytest.raises(ValueError, match=f"{folder.name}: compressed-tensors format .* not read"):
        load(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"kbit9", "a.weight: unknown format 'kbit9'"),
        (b"\xff\xfe", "a.weight: 'ascii' codec"),
        (b"x" * 1000, "a.weight must name a format"),
        (b"kbit5", "a.weight"),  # of other shapes
    ],
)
def test_names_of_formats_that_are_none(tmp_path, text, message):
    folder = one(tmp_path, "kbit4", "blockscale")
    tensors = load_file(folder / "model.safetensors")
    tensors["a.weight"] = torch.tensor(list(text), dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize("role", ["codes", "scale", "tensor_scale", "codebook"])
def test_a_part_that_is_missing_is_named(tmp_path, role):
    folder = one(tmp_path, "kbit4", "blockscale")
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"a.weight_{role}"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"a.weight is kbit4 but has no {role}"):
        load(folder)


def test_modelopt_algorithms_that_are_not_ours(tmp_path):
    folder = one(tmp_path, "nvfp4", "modelopt")
    rewrite_json(
        folder / "config.json", lambda c: c["quantization_config"].update(quant_algo="FP8")
    )
    with pytest.raises(ValueError, match="ModelOpt quant_algo 'FP8' is not read"):
        load(folder)


def bnb(tmp_path, state, **parts):
    text = json.dumps(state).encode() if isinstance(state, dict) else state
    tensors = {
        "a.weight": torch.zeros(64, 1, dtype=torch.uint8),
        "a.weight.absmax": torch.ones(2),
        "a.weight.quant_map": torch.linspace(-1, 1, 16),
        "a.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(text), dtype=torch.uint8),
    }
    tensors |= {f"a.weight.{name}": part for name, part in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"quantization_config": {"quant_method": "bitsandbytes"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return load(tmp_path)


GOOD = {"blocksize": 64, "shape": [2, 64]}
NESTED = {**GOOD, "nested_offset": 0.5, "nested_blocksize": 256}


@pytest.mark.parametrize(
    ("state", "parts", "message"),
    [
        (b"{", {}, "is not JSON"),
        (b"[1]", {}, "must be a JSON object"),
        (b'{"shape":' + b"[" * 9 + b"]" * 9 + b"}", {}, "nested more than 2 deep"),
        (b'{"a":[' + b"0," * 100 + b"0]}", {}, "values, more than a description can need"),
        ({"blocksize": 64}, {}, "is no state of a matrix"),
        ({"blocksize": 64, "shape": [2]}, {}, "is no state of a matrix"),
        ({"blocksize": 0, "shape": [2, 64]}, {}, "sizes must be positive"),
        ({"blocksize": True, "shape": [2, 64]}, {}, "sizes must be positive"),
        ({"blocksize": 43, "shape": [3, 43]}, {}, "has an odd number"),
        ({**NESTED, "nested_offset": 10**400}, {}, "nested_offset must be a number"),
        ({**NESTED, "nested_offset": "1"}, {}, "nested_offset must be a number"),
        ({**NESTED, "nested_offset": float("nan")}, {}, "nested_offset must be a number"),
        ({"blocksize": 64, "shape": [4, 32]}, {}, "blocks of 64 that cross its rows of 32"),
        ({"blocksize": 64, "shape": [2**40, 64]}, {}, "a.weight must have .* values"),
        ({**GOOD, "nested_offset": 1.0}, {}, "is no state of a matrix"),
        ({**GOOD, "nested_offset": 1.0, "nested_blocksize": 256}, {}, "nested_absmax is missing"),
        (GOOD, {"absmax": torch.ones(3)}, "a.weight.absmax must have 2 values"),
        (GOOD, {"absmax": torch.ones(2).double()}, "has dtype torch.float64"),
        (b"{}" + b" " * 2**17, {}, "must be a few bytes"),
    ],
)
def test_bitsandbytes_states_that_do_not_fit(state, parts, message, tmp_path):
    assert bnb(tmp_path, GOOD)["a.weight"].shape == (2, 64)
    with pytest.raises(ValueError, match=message):
        bnb(tmp_path, state, **parts)


@pytest.mark.fault(
    "a bitsandbytes checkpoint of 2 KB claims nested blocks of 2^44 values",
    outcome="the right result: nothing is expanded beyond what the file holds",
)
def test_nested_blocks_are_expanded_no_further_than_the_file(tmp_path):
    parts = {
        "absmax": torch.tensor([3, 200], dtype=torch.uint8),
        "nested_absmax": torch.tensor([2.0]),
        "nested_quant_map": torch.linspace(-1, 1, 256),
    }
    wanted = bnb(tmp_path, NESTED, **parts)["a.weight"]
    for blocks in (2**44, 2**70):
        assert bnb(tmp_path, {**NESTED, "nested_blocksize": blocks}, **parts)["a.weight"] == wanted


@pytest.mark.fault(
    "a codebook has a million values",
    outcome="ValueError from its header alone",
)
def test_a_codebook_of_another_size_is_refused_by_its_header(tmp_path):
    folder = one(tmp_path, "kbit4", "blockscale")
    rewrite_tensors(
        folder / "model.safetensors", put("a.weight_codebook", lambda t: torch.zeros(2**20))
    )
    with pytest.raises(ValueError, match=r"a.weight_codebook must be \[16\] for kbit4, got \[1048"):
        Checkpoint(folder)


@pytest.mark.parametrize("shape", [(), (256,)])
def test_codes_that_are_no_matrix(tmp_path, shape):
    folder = one(tmp_path, "mxfp4", "blockscale")
    rewrite_tensors(
        folder / "model.safetensors",
        put("a.weight_codes", lambda t: torch.zeros(shape, dtype=torch.uint8)),
    )
    with pytest.raises(ValueError, match=r"a.weight_codes must be \[..., n, bytes\], got"):
        load(folder)


@pytest.mark.parametrize("label", [None, 7, ["kbit4"], "x" * 65, "e2m1/" + "9" * 50 + ":e8m0"])
def test_a_format_that_is_none_is_said_with_the_file(tmp_path, label):
    folder = one(tmp_path, "kbit4", "blockscale")
    change = {"version": 1, "tensors": {"a.weight": label}}
    rewrite_json(folder / "config.json", lambda c: c["quantization_config"].update(change))
    with pytest.raises(ValueError, match=f"{folder.name}: a.weight"):
        load(folder)


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
