"""Damage that a file's own structure suggests: to bytes, to JSON, to safetensors.

Random bytes are refused by the first check they meet. What gets further is a file that is right but
for one number, name or nesting, so most mutations take a file apart, change one thing and put it
together again, with lengths and offsets that still fit.
"""

from __future__ import annotations

import json
import random
import struct

NUMBERS = [0, 1, -1, 2, 7, 8, 15, 16, 63, 64, 255, 2**16, 2**31, 2**32, 2**44, 2**63, 2**64, 2**70]
NUMBERS += [0.5, -0.0, 1e308, float("inf"), float("nan"), 10**400, True, False]
WORDS = ["", "x", "..", "../x.safetensors", "/etc/passwd", "a\0b", "\ud800", "é", "x" * 300]
WORDS += ["nvfp4", "mxfp4", "mxfp8", "kbit4", "codebook8/4096:f32", "e2m1/8:e8m0", "1" * 5000]
WORDS += ["modelopt", "bitsandbytes", "blockscale", "compressed-tensors", "mxfp4", "NVFP4", "MXFP8"]
WORDS += ["U8", "F32", "F64", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64"]


def mutate_file(name: str, content: bytes, rng: random.Random) -> bytes:
    """One file, changed in one to three places."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        structured = rng.random() < 0.85
        if structured and name.endswith(".json"):
            content = mutate_json(content, rng)
        elif structured and name.endswith(".safetensors"):
            content = mutate_safetensors(content, rng)
        else:
            content = mutate_bytes(content, rng)
    return content


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    place = rng.randrange(len(data) + 1)
    length = rng.choice([1, 2, 8, 64])
    kind = rng.randrange(6)
    if kind == 0 and data:
        data[place % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        del data[place : place + length]
    elif kind == 3:
        data[place:place] = rng.randbytes(length)
    elif kind == 4:
        data[place : place + length] = data[: rng.choice([1, 8, 64])]
    else:
        data[place:place] = rng.choice([b"[", b"{", b'"', b"\\", b"[],"]) * rng.choice(
            [1, 50, 5000]
        )
    return bytes(data)


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    """A changed tree, or changed bytes where they are no JSON any more or too deep."""
    try:
        tree = mutate_tree(json.loads(content), rng)
        text = json.dumps(tree, ensure_ascii=rng.random() < 0.9)
    except (ValueError, RecursionError):
        return mutate_bytes(content, rng)
    return text.encode("utf-8", "surrogatepass")


def mutate_tree(tree: object, rng: random.Random) -> object:
    root = [tree]
    places = list(_places(root))
    holder, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0 and holder is not root:
        del holder[key]
    elif kind == 1:
        other, at = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[at]))
    elif kind == 2 and isinstance(holder[key], dict):
        holder[key][rng.choice(WORDS)] = _value(rng)
    elif kind == 3 and isinstance(holder[key], list):
        holder[key].insert(rng.randrange(len(holder[key]) + 1), _value(rng))
    elif kind == 4 and type(holder[key]) is int:
        holder[key] += rng.choice([-1, 1, holder[key], -holder[key] // 2])
    else:
        holder[key] = _value(rng)
    return root[0]


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """The header as a tree, or the bytes of tensors; mostly with a length that is right."""
    try:
        (length,) = struct.unpack("<Q", content[:8])
        header, data = content[8 : 8 + length], content[8 + length :]
    except (struct.error, OverflowError):
        return mutate_bytes(content, rng)
    kind = rng.randrange(10)
    if kind < 6:
        header = mutate_json(header, rng)
    elif kind < 8:
        data = mutate_bytes(data, rng)
    elif kind == 8:
        header = mutate_bytes(header, rng)
    else:
        length = rng.choice([0, 1, len(header) - 1, len(header) + 1, 2**27, 2**63, 2**64 - 1])
        return struct.pack("<Q", max(length, 0)) + header + data
    return struct.pack("<Q", len(header)) + header + data


def _places(node: object):
    """Every (holder, key) of a tree."""
    keys = range(len(node)) if isinstance(node, list) else list(node)
    for key in keys:
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from _places(node[key])


def _value(rng: random.Random) -> object:
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(WORDS)
    deep: object = rng.choice([None, [], {}])
    if kind == 5:
        for _ in range(rng.choice([1, 3, 40, 200])):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
    elif kind == 6:
        deep = [rng.choice([0, 1, {}, "a"])] * rng.choice([1, 3, 100, 5000])
    return deep
