"""What engines are given of a stream of stored tensors; no engine is needed."""

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import Checkpoint
from blockscale.integrations.engines.expert_sources import Ranks, want_experts
from blockscale.integrations.engines.intake import Cut, Intake
from blockscale.integrations.engines.packed import Memory, PackedLinear
from blockscale.integrations.engines.stored_layers import StoredLayers
from blockscale.integrations.vllm.claims import claims, readable
from blockscale.integrations.vllm.registration import TESTED, version_warning
from checkpoint.damage import rewrite_json

PROJECTIONS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def saved(tmp_path, tensors, dialect="blockscale"):
    bs.save(tensors, tmp_path / "q", dialect=dialect)
    return Checkpoint(tmp_path / "q")


def stream_of(checkpoint):
    """As an engine reads files: every stored tensor under its own name."""
    for name in checkpoint.files.entries:
        yield name, checkpoint.files.tensor(name)


def intake_of(checkpoint, elsewhere=lambda stored: False):
    return Intake(list(checkpoint.tensors.values()), elsewhere)


def weight(n, k, format="nvfp4"):
    return bs.quantize(torch.randn(n, k), format)


@pytest.mark.parametrize("dialect", ["blockscale", "modelopt", "compressed-tensors"])
@pytest.mark.parametrize(("axis", "ranges"), [(0, ((8, 16), (24, 32))), (1, ((32, 64),))])
def test_a_part_is_cut_out_of_the_stream(tmp_path, dialect, axis, ranges):
    q = weight(32, 64)
    checkpoint = saved(tmp_path, {"a.weight": q, "a.bias": torch.ones(32)}, dialect)
    intake = intake_of(checkpoint)
    piece = intake.want(checkpoint.tensors["a.weight"], Cut(axis, ranges))
    others = dict(intake.stream(stream_of(checkpoint)))
    assert list(others) == ["a.bias"]
    assert piece.shape == ((16, 64) if axis == 0 else (32, 32))
    index = [(slice(None),) * axis + (slice(*each),) for each in ranges]
    whole = q if dialect != "compressed-tensors" else checkpoint.read("a.weight")
    assert piece.assemble() == bs.cat([whole[each] for each in index], dim=axis)


def test_a_packed_tensor_that_no_layer_reads_is_an_error(tmp_path):
    checkpoint = saved(tmp_path, {"a.weight": weight(32, 64), "b.weight": weight(32, 64)})
    intake = intake_of(checkpoint)
    intake.want(checkpoint.tensors["a.weight"])
    with pytest.raises(ValueError, match=r"b\.weight.* no layer of the model reads it.* Keep it"):
        list(intake.stream(stream_of(checkpoint)))


def test_another_stage_of_a_pipeline_may_have_it(tmp_path):
    checkpoint = saved(tmp_path, {"a.weight": weight(32, 64), "b.weight": weight(32, 64)})
    intake = intake_of(checkpoint, lambda stored: stored.name == "b.weight")
    intake.want(checkpoint.tensors["a.weight"])
    passed_on = {name for name, _ in intake.stream(stream_of(checkpoint))}
    assert passed_on == {
        "b.weight",
        "b.weight_codes",
        "b.weight_scale",
        "b.weight_tensor_scale",
    }  # which the engine leaves out itself


def test_a_weight_that_nobody_fills_is_an_error(tmp_path):
    checkpoint = saved(tmp_path, {"a.weight": weight(32, 64)})
    intake = intake_of(checkpoint)
    intake.want(checkpoint.tensors["a.weight"])
    stream = (pair for pair in stream_of(checkpoint) if not pair[0].endswith("_scale"))
    with pytest.raises(ValueError, match=r"wait for a\.weight_scale, .*: give whole layers"):
        list(intake.stream(stream))


def test_a_weight_of_another_shape_is_an_error(tmp_path):
    checkpoint = saved(tmp_path, {"a.weight": weight(32, 64)})
    intake = intake_of(checkpoint)
    intake.want(checkpoint.tensors["a.weight"])
    with pytest.raises(ValueError, match=r"a\.weight_codes is torch\.uint8 \[32, 32\]"):
        list(intake.stream([("a.weight_codes", torch.zeros(2, 2))]))


def test_nested_loaders_look_once(tmp_path):
    """The stream of a model inside a model has names without a prefix, and ends many times."""
    checkpoint = saved(tmp_path, {"a.weight": weight(32, 64), "n.weight": torch.ones(3)})
    intake = intake_of(checkpoint)
    piece = intake.want(checkpoint.tensors["a.weight"])
    inner = (dict(intake.stream([pair])) for pair in intake.stream(stream_of(checkpoint)))
    assert [list(each) for each in inner] == [["n.weight"]]
    assert piece.missing == []


def test_a_second_stream_rebuilds_what_it_has_brought(tmp_path):
    checkpoint = saved(tmp_path, {"a.weight": weight(32, 64), "b.weight": weight(32, 64)})
    intake, rebuilt = intake_of(checkpoint), []
    pieces = {name: intake.want(checkpoint.tensors[name]) for name in ("a.weight", "b.weight")}
    intake.on_reload(lambda: rebuilt.extend(n for n, p in pieces.items() if not p.untouched))
    list(intake.stream(stream_of(checkpoint)))
    assert rebuilt == []
    for piece in pieces.values():
        piece.assemble()
    list(intake.stream(pair for pair in stream_of(checkpoint) if pair[0].startswith("a.")))
    assert rebuilt == ["a.weight"]


def test_a_layer_that_only_other_layers_have_is_an_error(tmp_path):
    tensors = {f"l.0.{name}.weight": weight(32, 64) for name in ("q", "k", "down", "odd")}
    tensors["l.1.odd.weight"] = torch.ones(32, 64)  # plain there
    layers = StoredLayers(saved(tmp_path, tensors).tensors, lambda module: module)
    with pytest.raises(ValueError, match=r"no l\.1\.down, which it has for other layers"):
        layers.linear("l.1.down", [])
    with pytest.raises(ValueError, match=r"no l\.1\.q, l\.1\.k, which it has for other layers"):
        layers.linear("l.1.qk", ["q", "k"])
    assert layers.linear("l.1.odd", []) is None
    assert layers.linear("l.1.unheard_of", []) is None  # as the engine may have named it


def test_layers_are_found_under_the_names_of_the_engine(tmp_path):
    tensors = {f"lm.l.0.{name}.weight": weight(32, 64) for name in ("q", "k", "qkv_apart")}
    tensors["lm.l.0.v.weight"] = torch.ones(32, 64)
    layers = StoredLayers(
        saved(tmp_path, tensors).tensors, lambda module: module.replace("lm.", "model.")
    )
    fused = layers.linear("model.l.0.qkv", ["q", "k", "v"])
    assert [str(each.format) for each in fused.weights] == ["nvfp4", "nvfp4", "None"]
    assert len(layers.linear("model.l.0.qkv_apart", ["x", "y"]).weights) == 1  # fused on the disk
    assert layers.linear("model.l.0.v", []) is None
    with pytest.raises(ValueError, match=r"the checkpoint has no model\.l\.0\.w"):
        layers.linear("model.l.0.qkv", ["q", "w"])


@pytest.mark.parametrize("formats", [("nvfp4", "nvfp4"), ("nvfp4", "mxfp8"), ("nvfp4", None)])
def test_fused_rows_of_any_formats_are_multiplied(formats):
    x, bias = torch.randn(3, 64), torch.randn(80)
    plain = [torch.randn(48, 64), torch.randn(32, 64)]
    pairs = zip(plain, formats, strict=True)
    weights = [each if format is None else bs.quantize(each, format) for each, format in pairs]
    layer = PackedLinear(weights)
    assert len(layer.qtensors()) == (2 if formats == ("nvfp4", "mxfp8") else 1)
    check_product(layer, weights, x, bias)


def check_product(layer, weights, x, bias):
    """By float32 sums of 64 terms."""
    numbers = torch.cat([w if isinstance(w, torch.Tensor) else w.dequantize() for w in weights])
    expected = x.double() @ numbers.double().T + bias.double()
    bound = 64 * 2**-24 * (x.abs().double() @ numbers.abs().double().T + bias.abs().double()) * 4
    assert ((layer(x, bias).double() - expected).abs() <= bound).all()


def test_weights_with_codebooks_of_their_own_are_multiplied_apart():
    """Neighbours that share a table are still one."""
    plain = [torch.randn(16, 64) * scale + 0.1 * scale for scale in (1, 2, 3)]
    first, other = (bs.fit_codebook(each, 4) for each in plain[:2])
    assert first.codebook != other.codebook
    tables = (first, first, other)
    weights = [bs.quantize(each, table) for each, table in zip(plain, tables, strict=True)]
    layer = PackedLinear(weights)
    held = layer.qtensors()
    assert [(name, each.shape[0]) for name, each in held.items()] == [
        ("weight", 32),
        ("weight1", 16),
    ]
    check_product(layer, weights, torch.randn(3, 64), torch.randn(48))


def test_a_reload_keeps_the_memory():
    old, new = PackedLinear([weight(32, 64)]), PackedLinear([weight(32, 64)])
    old.prepare()
    memory, x = Memory(old), torch.randn(2, 64)
    taken = {name: part for name, part in old._buffers.items() if part is not None}
    for name in taken:  # as the engine does while it loads
        del old._buffers[name]
    memory.overwrite(new)
    old._buffers.update(taken)
    assert torch.equal(old(x), new(x))
    with pytest.raises(ValueError, match="start the server again"):
        memory.overwrite(PackedLinear([weight(32, 64, "mxfp8")]))


def fused_experts():
    gate_up, down = torch.randn(4, 64, 64), torch.randn(4, 64, 32)
    return {
        "m.experts.gate_up_proj": bs.quantize(gate_up, bs.MXFP4),
        "m.experts.down_proj": bs.quantize(down, bs.MXFP4),
        "m.experts.gate_up_proj_bias": torch.randn(4, 64),
        "m.experts.down_proj_bias": torch.randn(4, 64),
    }


@pytest.mark.parametrize("dialect", ["blockscale", "gpt-oss"])
def test_experts_of_a_rank(tmp_path, dialect):
    tensors = fused_experts()
    checkpoint = saved(tmp_path, tensors, dialect)
    layers = StoredLayers(checkpoint.tensors, lambda module: module)
    intake = intake_of(checkpoint)
    inside = layers.below("m.experts")
    pieces = want_experts(intake, inside, PROJECTIONS, Ranks([3, 1], total=4))
    assert list(intake.stream(stream_of(checkpoint))) == []
    gate_up = pieces.weights["gate"][0].assemble()
    whole = tensors["m.experts.gate_up_proj"]
    assert gate_up == bs.cat([whole[3:4], whole[1:2]], dim=0)
    bias = pieces.biases["down"][0].assemble()
    assert torch.equal(bias, tensors["m.experts.down_proj_bias"][[3, 1]])


@pytest.mark.parametrize("dialect", ["blockscale", "gpt-oss"])
def test_features_of_a_rank(tmp_path, dialect):
    tensors = fused_experts()
    checkpoint = saved(tmp_path, tensors, dialect)
    inside = StoredLayers(checkpoint.tensors, lambda module: module).below("m.experts")
    intake = intake_of(checkpoint)
    with pytest.raises(ValueError, match="block"):  # 32 columns of down are one block
        want_experts(intake, inside, PROJECTIONS, Ranks(range(4), 4, rank=1, size=2))
    gate_up = tensors["m.experts.gate_up_proj"]
    cut = Ranks(range(4), 4, rank=1, size=2).cut(
        inside["gate_up_proj"], ("gate", "up"), one=False, is_bias=False
    )
    intake = intake_of(checkpoint, lambda stored: True)
    piece = intake.want(inside["gate_up_proj"], cut)
    list(intake.stream(stream_of(checkpoint)))
    assert piece.assemble() == bs.cat([gate_up[:, 16:32], gate_up[:, 48:64]], dim=1)


def test_experts_one_by_one(tmp_path):
    tensors = {
        f"m.experts.{i}.{name}.weight": weight(64, 64, "mxfp8")
        for i in range(3)
        for name in PROJECTIONS
    }
    checkpoint = saved(tmp_path, tensors, "modelopt")
    inside = StoredLayers(checkpoint.tensors, lambda module: module).below("m.experts")
    intake = intake_of(checkpoint)
    pieces = want_experts(intake, inside, PROJECTIONS, Ranks([2, 0], total=3))
    assert list(intake.stream(stream_of(checkpoint))) == []
    found = [piece.assemble() for piece in pieces.weights["up"]]
    assert found == [tensors[f"m.experts.{i}.up_proj.weight"] for i in (2, 0)]
    inside.pop("0.up_proj.weight")
    told = "2 experts are needed here, and the checkpoint has the up.*config.json belong"
    with pytest.raises(ValueError, match=told):
        want_experts(intake_of(checkpoint), inside, PROJECTIONS, Ranks([2, 0], total=3))


NVFP4_LABEL = {"config_groups": {"0": {"format": "nvfp4-pack-quantized"}}}
INT8_LABEL = {"config_groups": {"0": {"format": "int-quantized"}}}
FP8_ATTENTION = {"format": "dense", "weights": None, "input_activations": {"num_bits": 8}}
WITH_ATTENTION = {"config_groups": {**NVFP4_LABEL["config_groups"], "1": FP8_ATTENTION}}
PRESET = {"config_groups": {"NVFP4": ["Linear"]}}
ROTATED = {"transform_config": {"config_groups": {"R4": {"type": "hadamard"}}}}


def mixed(*algorithms):
    layers = {f"l{i}": {"quant_algo": each} for i, each in enumerate(algorithms)}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
    }


@pytest.mark.parametrize(
    ("described", "asked", "on_cpu", "everywhere", "taken"),
    [
        ({"quant_method": "blockscale"}, None, False, None, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None, True, None, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None, False, None, False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None, False, True, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None, True, False, False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "blockscale", False, None, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt_fp4", True, None, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, None, True, None, False),
        ({"quant_method": "compressed-tensors", **NVFP4_LABEL}, None, True, None, True),
        ({"quant_method": "compressed-tensors", **WITH_ATTENTION}, None, True, None, True),
        ({"quant_method": "compressed-tensors", **INT8_LABEL}, None, True, None, False),
        ({"quant_method": "compressed-tensors", **PRESET}, None, True, None, False),
        ({"quant_method": "compressed-tensors", **NVFP4_LABEL, **ROTATED}, None, True, None, False),
        (mixed("NVFP4", "MXFP8"), None, True, None, True),
        (mixed("NVFP4", "NVFP4_AWQ"), None, True, None, False),
        (mixed(), None, True, None, False),
        ({"quant_method": "mxfp4"}, None, True, None, True),
        ({"quant_method": "gptq"}, "blockscale", True, True, False),
    ],
)
def test_checkpoints_that_are_claimed(described, asked, on_cpu, everywhere, taken):
    assert taken == claims(described, "gpt_oss", asked=asked, on_cpu=on_cpu, everywhere=everywhere)


@pytest.mark.parametrize(
    ("described", "is_read"),
    [
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, True),
        ({"quant_method": "modelopt", "quant_algo": "nvfp4"}, True),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}, True),
        ({"quant_method": "modelopt_fp4", "quant_algo": "FP8"}, False),
        ({"quant_method": "modelopt", "quant_algo": None}, False),
        ({"quant_method": "modelopter", "quant_algo": "NVFP4"}, False),
    ],
)
def test_what_is_claimed_can_be_opened(described, is_read, tmp_path):
    checkpoint = saved(tmp_path, {"l.weight": weight(64, 64, "nvfp4")}, "modelopt")
    folder = checkpoint.files.path
    (folder / "hf_quant_config.json").unlink()
    rewrite_json(folder / "config.json", lambda c: c.update(quantization_config=described))
    assert readable(described) == is_read
    if is_read:
        assert Checkpoint(folder).tensors["l.weight"].format == bs.NVFP4
    else:
        with pytest.raises(ValueError, match="is not read"):
            Checkpoint(folder)


def test_untested_versions_get_one_warning():
    assert version_warning(f"{TESTED[0]}.7") is None
    assert version_warning(TESTED[0]) is None
    assert "this is 0.99.1" in version_warning("0.99.1")
    assert version_warning(f"{TESTED[0]}1.0") is not None
