"""A rank reads its part of a checkpoint: the bytes of that part, and no others."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.checkpoint import Checkpoint
from blockscale.checkpoint.files import Files

FORMATS = {
    "compressed-tensors": (bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8),
    "modelopt": (bs.NVFP4, bs.MXFP8),
    "blockscale": (bs.NVFP4, bs.MXFP8, bs.KBIT3, bs.BNB_NF4),
}
WAYS = [(dialect, format) for dialect, formats in FORMATS.items() for format in formats]
SMALL = 128  # bytes of tensor scales, codebooks and labels


@pytest.fixture
def read(monkeypatch):
    """How many bytes were read since."""
    counted = []
    for name in ("part", "tensor"):
        original = getattr(Files, name)

        def counting(self, *args, original=original, **named):
            tensor = original(self, *args, **named)
            counted.append(tensor.nbytes)
            return tensor

        monkeypatch.setattr(Files, name, counting)
    return counted


@pytest.mark.parametrize(("dialect", "format"), WAYS, ids=lambda value: str(value))
@pytest.mark.parametrize("axis", [0, 1])
def test_ranks_read_their_bytes_and_no_others(tmp_path, read, dialect, format, axis):
    q = bs.quantize(torch.randn(64, 512), format)
    bs.save({"a.weight": q, "a.bias": torch.randn(64)}, tmp_path / "x", dialect=dialect)
    checkpoint = Checkpoint(tmp_path / "x")
    for rank in range(4):
        read.clear()
        part = checkpoint.read_shard("a.weight", axis, rank, 4)
        assert part == bs.shard(q, axis, rank, 4)
        assert sum(read) <= (q.codes.nbytes + q.scale.nbytes) // 4 + SMALL
    read.clear()
    bias = checkpoint.read_shard("a.bias", 0, 1, 4)
    assert torch.equal(bias, checkpoint.read("a.bias")[16:32])
    assert read[0] == 64


@pytest.mark.parametrize("dialect", ["gpt-oss", "blockscale"])
@pytest.mark.parametrize(("axis", "pieces"), [(0, 1), (1, 2), (2, 1)])
def test_fused_experts_are_cut_in_both_halves(tmp_path, read, dialect, axis, pieces):
    name = "model.layers.0.mlp.experts.gate_up_proj"
    q, bias = bs.quantize(torch.randn(4, 32, 128), bs.MXFP4), torch.randn(4, 32)
    bs.save({name: q, f"{name}_bias": bias}, tmp_path / "x", dialect=dialect)
    checkpoint = Checkpoint(tmp_path / "x")
    halves = [q] if pieces == 1 else [q[:, :16], q[:, 16:]]
    biases = [bias] if pieces == 1 else [bias[:, :16], bias[:, 16:]]
    for rank in range(2):
        read.clear()
        part = checkpoint.read_shard(name, axis, rank, 2, pieces=pieces)
        assert part == bs.cat([bs.shard(half, axis, rank, 2) for half in halves], axis)
        assert sum(read) <= q.nbytes // 2 + SMALL
        if axis < 2:
            found = checkpoint.read_shard(f"{name}_bias", axis, rank, 2, pieces=pieces)
            wanted = torch.cat([half.chunk(2, axis)[rank] for half in biases], axis)
            assert torch.equal(found, wanted)


def test_rows_of_gate_alone_are_refused_where_up_lies_between(tmp_path):
    name = "model.layers.0.mlp.experts.gate_up_proj"
    bs.save(
        {name: bs.quantize(torch.randn(4, 32, 64), bs.MXFP4)}, tmp_path / "x", dialect="gpt-oss"
    )
    with pytest.raises(ValueError, match="pieces=2"):
        Checkpoint(tmp_path / "x").read_shard(name, 1, 0, 2)


def test_a_shard_that_would_cut_a_block_is_refused_before_anything_is_read(tmp_path, read):
    bs.save({"a.weight": bs.quantize(torch.randn(8, 96), bs.MXFP8)}, tmp_path / "x")
    checkpoint = Checkpoint(tmp_path / "x")
    read.clear()
    with pytest.raises(ValueError, match="k=96 over 2 ranks is 48 columns"):
        checkpoint.read_shard("a.weight", 1, 0, 2)
    with pytest.raises(ValueError, match="rank must be from 0 to 1, got 2"):
        checkpoint.read_shard("a.weight", 0, 2, 2)
    assert not read


@pytest.mark.fault(
    "scales are wider than the codes they belong to, and a rank reads its part",
    outcome="ValueError that names the file and both shapes",
)
def test_a_part_of_a_wrong_file_does_not_look_right(tmp_path):
    q = bs.quantize(torch.randn(8, 64), bs.MXFP8)
    bs.save({"a.weight": q}, tmp_path / "x", dialect="blockscale")
    file = tmp_path / "x" / "model.safetensors"
    tensors = load_file(file)
    tensors["a.weight_scale"] = torch.zeros(8, 4, dtype=torch.uint8)
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"holds \[8, 64\], so a.weight_scale must be \[8, 2\]"):
        Checkpoint(tmp_path / "x").read_shard("a.weight", 1, 0, 2)
    with pytest.raises(IndexError, match="axis 2"):
        Checkpoint(_sound(tmp_path / "y", q)).read_shard("a.weight", 2, 0, 2)


def _sound(path, q):
    bs.save({"a.weight": q}, path)
    return path
