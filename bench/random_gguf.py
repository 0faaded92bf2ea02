"""A Llama of random bytes as a GGUF file in Q4_0, for llama.cpp's llama-bench to time."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

_ALIGNMENT = 32
_U32, _F32, _STRING = 4, 6, 8  # of values in the header
_FLOAT, _Q4_0 = 0, 2  # of tensors
_BLOCK = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])  # 32 numbers in Q4_0


class Shape(NamedTuple):
    """Of a Llama; by default that of 3.2 1B."""

    layers: int = 16
    hidden: int = 2048
    intermediate: int = 8192
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 128256

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def write_gguf(path: Path, shape: Shape) -> None:
    tensors = list(_tensors(shape))
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(_header(shape, tensors))
        for _, size in tensors:
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            file.write(_random(size, generator))


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:  # [n, k], or [k]
    kv = shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocabulary, shape.hidden)
    yield "output_norm.weight", (shape.hidden,)
    yield "output.weight", (shape.vocabulary, shape.hidden)
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm.weight", (shape.hidden,)
        yield f"blk.{i}.attn_q.weight", (shape.hidden, shape.hidden)
        yield f"blk.{i}.attn_k.weight", (kv, shape.hidden)
        yield f"blk.{i}.attn_v.weight", (kv, shape.hidden)
        yield f"blk.{i}.attn_output.weight", (shape.hidden, shape.hidden)
        yield f"blk.{i}.ffn_norm.weight", (shape.hidden,)
        yield f"blk.{i}.ffn_gate.weight", (shape.intermediate, shape.hidden)
        yield f"blk.{i}.ffn_up.weight", (shape.intermediate, shape.hidden)
        yield f"blk.{i}.ffn_down.weight", (shape.hidden, shape.intermediate)


def _bytes(size: tuple[int, ...]) -> int:
    count = int(np.prod(size))
    return 4 * count if len(size) == 1 else count // 32 * _BLOCK.itemsize


def _random(size: tuple[int, ...], generator: np.random.Generator) -> bytes:
    if len(size) == 1:
        return np.ones(size, np.float32).tobytes()
    blocks = np.empty(int(np.prod(size)) // 32, _BLOCK)
    blocks["scale"] = 0.002
    blocks["codes"] = generator.integers(0, 256, (len(blocks), 16), np.uint8)
    return blocks.tobytes()


def _header(shape: Shape, tensors: list[tuple[str, tuple[int, ...]]]) -> bytes:
    facts: dict[str, str | int | float] = {
        "general.architecture": "llama",
        "general.file_type": 2,
        "llama.context_length": 4096,
        "llama.embedding_length": shape.hidden,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.vocab_size": shape.vocabulary,
        "tokenizer.ggml.model": "no_vocab",
    }
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(facts))]
    parts += [_text(name) + _value(value) for name, value in facts.items()]
    offset = 0
    for name, size in tensors:
        kind = _FLOAT if len(size) == 1 else _Q4_0
        parts.append(_text(name) + struct.pack("<I", len(size)))
        parts.append(struct.pack(f"<{len(size)}QIQ", *reversed(size), kind, offset))
        offset += _bytes(size) + -_bytes(size) % _ALIGNMENT
    return b"".join(parts)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: str | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    return struct.pack("<II", _U32, value)
