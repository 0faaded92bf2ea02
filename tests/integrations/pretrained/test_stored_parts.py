"""Which part of a stored tensor a rank reads; no ranks are needed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

import blockscale as bs
from blockscale.checkpoint import Checkpoint

pytest.importorskip("transformers")

from blockscale.models.pretrained.placements import layer_shardings
from blockscale.models.pretrained.stored_parts import read_part, roles_of


@pytest.mark.parametrize("name", ["l.up_proj.weight", "l.experts.1.up_proj.weight"])
def test_an_expert_in_a_list_is_cut_as_any_linear_layer(tmp_path, name):
    """It is a layer of its own, whatever fused experts would be called in a file."""
    q = bs.quantize(torch.randn(64, 64), bs.MXFP4)
    bs.save({name: q}, tmp_path / "q", dialect="blockscale")
    layer = nn.Linear(64, 64, device="meta")
    second = SimpleNamespace(mesh_dim_names=("tp",), get_local_rank=lambda: 1, size=lambda: 2)
    layer.weight.placements, layer.weight.device_mesh = (Shard(0),), second  # as a DTensor has them
    formats = dict.fromkeys(roles_of(name, layer), bs.MXFP4)
    shardings = layer_shardings(name.removesuffix(".weight"), layer, formats)
    mine, part = read_part(Checkpoint(tmp_path / "q"), name, name, layer, shardings)
    assert mine == name
    assert part == q[32:]
