"""What `save` writes beside the tensors."""

import torch

from blockscale.checkpoint import load, save


def test_a_folder_of_plain_tensors_does_not_say_that_it_is_quantised(tmp_path):
    save({"a.weight": torch.ones(4, 64)}, tmp_path / "x", dialect="modelopt")
    assert {path.name for path in (tmp_path / "x").iterdir()} == {
        "config.json",
        "model.safetensors",
    }
    assert torch.equal(load(tmp_path / "x")["a.weight"], torch.ones(4, 64))
