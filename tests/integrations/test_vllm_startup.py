"""What a server says, and compiles, when the last of its layers has its weights."""

import torch

import blockscale as bs
from blockscale.integrations.engines.packed import PackedLinear
from blockscale.integrations.vllm.startup import Startup


def experts():
    gate, up = (bs.quantize(torch.randn(4, 64, 32), bs.MXFP8) for _ in range(2))
    down = bs.quantize(torch.randn(4, 32, 64), bs.MXFP8)
    made = bs.nn.Experts.from_qtensors(gate, up, down)
    made.prepare()
    return made


def test_the_last_layer_says_what_all_run_on(logged):
    startup = Startup("modelopt", [1, 8], torch.float32, is_speaker=True)
    layers = {f"l.{i}": PackedLinear([bs.quantize(torch.randn(48, 64), "nvfp4")]) for i in range(2)}
    for layer in layers.values():
        layer.prepare()
    layers["l.experts"] = experts()
    for name in layers:
        startup.expect(name)
    for name, layer in layers.items():
        assert not logged.texts
        startup.ready(name, layer)
    first, *explained = logged.texts
    assert first == "blockscale runs 2 nvfp4, 3 mxfp8 weights of modelopt, kept packed"
    assert len(explained) == 2  # kinds of layers
    assert "matmul m=1 n=48 k=64" in explained[0]
    assert "grouped" in explained[1]


def test_other_ranks_are_silent(logged):
    startup = Startup("modelopt", [1], torch.float32, is_speaker=False)
    startup.expect("l")
    startup.ready("l", PackedLinear([bs.quantize(torch.randn(48, 64), "nvfp4")]))
    assert logged.texts == []
