"""Sound files to damage, made by code: each is a folder, as {name: bytes}."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save

import blockscale as bs
from blockscale.runtime.proven import Proof
from blockscale.runtime.result_file import Machine, to_text
from blockscale.runtime.tuned import Measured, Result

Folder = dict[str, bytes]
SINGLE, CONFIG = "model.safetensors", "config.json"


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def plain() -> list[Folder]:
    """One file on its own: several dtypes and shapes, one of them empty."""
    tensors = {
        "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b.weight": torch.ones(4, 8, dtype=torch.bfloat16),
        "c": torch.zeros((), dtype=torch.int64),
        "d": torch.zeros((0, 5), dtype=torch.uint8),
    }
    return [{SINGLE: save(tensors, {"format": "pt"})}]


def quantised() -> list[Folder]:
    """A small folder for each dialect that is written, and a file with its config inside."""
    torch.manual_seed(0)
    found = []
    for dialect, format in [
        ("compressed-tensors", "nvfp4"),
        ("compressed-tensors", "mxfp8"),
        ("compressed-tensors", "mxfp6_e2m3"),
        ("modelopt", "nvfp4"),
        ("blockscale", "kbit4"),
        ("blockscale", "mxfp4"),
    ]:
        tensors = {"l.weight": bs.quantize(torch.randn(2, 64), format), "norm": torch.ones(3)}
        found.append(_saved(tensors, "x", dialect=dialect))
    found.append(_saved(tensors, SINGLE, dialect="blockscale"))
    return [*found, gpt_oss()]


def gpt_oss() -> Folder:
    tensors = {
        "experts.gate_up_proj_blocks": torch.zeros(2, 4, 2, 16, dtype=torch.uint8),
        "experts.gate_up_proj_scales": torch.full((2, 4, 2), 127, dtype=torch.uint8),
        "experts.gate_up_proj_bias": torch.zeros(2, 4),
    }
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    return {SINGLE: save(tensors), CONFIG: as_json(config)}


def sharded() -> list[Folder]:
    tensors = {f"l{i}.weight": bs.quantize(torch.ones(2, 64), "mxfp4") for i in range(3)}
    return [_saved(tensors, "x", shard_size=150)]


def bitsandbytes() -> list[Folder]:
    """With absmax as it is, and quantised once more; the states apart, so that they are mutated."""
    config = as_json({"quantization_config": {"quant_method": "bitsandbytes"}})
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [2, 64]}
    nested = {**state, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
    return [
        {
            "state.json": as_json(state),
            "parts.safetensors": save(_bnb(nested=False)),
            CONFIG: config,
        },
        {
            "state.json": as_json(nested),
            "parts.safetensors": save(_bnb(nested=True)),
            CONFIG: config,
        },
    ]


def _bnb(*, nested: bool) -> dict[str, torch.Tensor]:
    tensors = {
        "a.weight": torch.arange(64, dtype=torch.uint8)[:, None].contiguous(),
        "a.weight.quant_map": torch.linspace(-1, 1, 16),
        "a.weight.absmax": torch.ones(2),
    }
    if nested:
        tensors["a.weight.absmax"] = torch.tensor([3, 200], dtype=torch.uint8)
        tensors["a.weight.nested_absmax"] = torch.ones(1)
        tensors["a.weight.nested_quant_map"] = torch.linspace(-1, 1, 256)
    return tensors


def with_state(parts: bytes, state: bytes) -> bytes:
    """A safetensors file with one more tensor, at its end: the bytes of a state."""
    (length,) = struct.unpack("<Q", parts[:8])
    header, data = json.loads(parts[8 : 8 + length]), parts[8 + length :]
    header["a.weight.quant_state.bitsandbytes__nf4"] = {
        "dtype": "U8",
        "shape": [len(state)],
        "data_offsets": [len(data), len(data) + len(state)],
    }
    text = as_json(header)
    return struct.pack("<Q", len(text)) + text + data + state


def importance() -> list[Folder]:
    return [{SINGLE: save({"l.mlp": torch.rand(8), "l.experts.down_proj": torch.rand(2, 8)})}]


def tuned() -> list[Folder]:
    measured = Measured("stream", {"columns": 1, "stages": 3}, 10.0)
    problem = {"verb": "matmul", "m": 1, "n": 4096}
    results = [Result({**problem, "m": m}, "abc", measured, measured, "d", {}) for m in (1, 2)]
    return [{"tuned.json": to_text(Machine("H200", "sm_90"), results).encode()}]


def proven() -> list[Folder]:
    proofs = [
        Proof("stream", {"verb": "matmul", "m": m}, "abc", "13.0", failure, "d", {"torch": "2"})
        for m, failure in ((1, ""), (2, "2 of 4 values are wrong"))
    ]
    return [{"proven.json": to_text(Machine("B200", "sm_100"), proofs).encode()}]


def _saved(tensors: dict[str, object], name: str, **options: object) -> Folder:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        bs.save(tensors, path, **options)
        files = [path] if path.is_file() else sorted(path.iterdir())
        return {file.name: file.read_bytes() for file in files}
