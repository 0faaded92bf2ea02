"""The GGUF file that llama.cpp is timed with, read back by the package of its authors."""

import pytest

from bench.random_gguf import Shape, write_gguf

gguf = pytest.importorskip("gguf")


def test_its_authors_read_it(tmp_path):
    shape = Shape(layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, vocabulary=128)
    write_gguf(tmp_path / "model.gguf", shape)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert reader.get_field("llama.block_count").contents() == 2
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert len(found) == 3 + 9 * 2
    down = found["blk.1.ffn_down.weight"]
    assert (list(down.shape), down.tensor_type.name) == ([96, 64], "Q4_0")
    assert down.data.nbytes == 64 * 96 // 32 * 18
    decoded = gguf.dequantize(down.data, down.tensor_type)
    assert decoded.shape == (64, 96)
    assert abs(decoded).max() <= 8 * 0.0021
    assert (found["output_norm.weight"].data == 1).all()
