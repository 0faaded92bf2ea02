"""What is written is read back bit for bit, in every dialect that holds the format."""

import json
import re
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import WRITABLE, Checkpoint, load, save

OF_NVFP4 = [
    name
    for name, dialect in WRITABLE.items()
    if dialect.refuses("a.weight", bs.NVFP4, (16, 64)) is None
]
PLACES = ["folder", "alone.safetensors"]


def holding(fmt):
    return [
        name
        for name, dialect in WRITABLE.items()
        if dialect.refuses("any.weight", fmt, (8, 512)) is None
    ]


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, bs.QTensor):
            assert found[name] == value, name
            assert found[name].format == value.format
        else:
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("place", PLACES)
def test_every_format_round_trips(fmt, place, tmp_path):
    k = max(64, fmt.block)
    tensors = {
        "a.up_proj.weight": bs.quantize(torch.randn(24, k), fmt),
        "a.down_proj.weight": bs.quantize(torch.randn(8, 2 * k) * 100, fmt),
        "a.norm.weight": torch.randn(24).bfloat16(),
        "step": torch.tensor(3),
    }
    dialects = holding(fmt)
    assert "blockscale" in dialects
    for dialect in dialects:
        path = tmp_path / dialect / place
        path.parent.mkdir()
        save(tensors, path, dialect=dialect)
        assert_same(load(path), tensors)


def test_experts_and_own_codebooks_round_trip(tmp_path):
    own = bs.KBIT3.replace(codebook=[-1, -0.6, -0.3, -0.1, 0, 0.2, 0.5, 0.9])
    tensors = {
        "mlp.experts.gate_up_proj": bs.quantize(torch.randn(3, 16, 64), bs.NVFP4),
        "mlp.experts.down_proj": bs.quantize(torch.randn(3, 8, 32), own),
        "bias": torch.zeros(0, 4),
    }
    save(tensors, tmp_path / "x")
    assert Checkpoint(tmp_path / "x").dialect.NAME == "blockscale"
    assert_same(load(tmp_path / "x"), tensors)


def test_prepared_tensors_are_written_canonical(tmp_path):
    q = bs.quantize(torch.randn(200, 64), bs.NVFP4)
    save({"a.weight": q.pack("blocked")}, tmp_path / "x")
    assert_same(load(tmp_path / "x"), {"a.weight": q})


@pytest.mark.parametrize("dialect", OF_NVFP4)
def test_static_input_scales_round_trip(dialect, tmp_path):
    q = bs.quantize(torch.randn(16, 64), bs.NVFP4)
    scale = 1 / torch.tensor(2688 / 3.7)
    tensors = {"a.weight": q, "a.input_scale": scale, "b.weight": q}
    save(tensors, tmp_path / "x", dialect=dialect)
    assert_same(load(tmp_path / "x"), tensors)


def test_shards_have_an_index_and_stay_whole(tmp_path):
    tensors = {f"l{i}.weight": bs.quantize(torch.randn(16, 64), bs.MXFP4) for i in range(9)}
    save(tensors, tmp_path / "x", shard_size=1200, config={"model_type": "toy"})
    index = json.loads((tmp_path / "x" / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 3
    for name in tensors:
        module = name.removesuffix(".weight")
        parts = {index["weight_map"][f"{module}.{r}"] for r in ("weight_packed", "weight_scale")}
        assert len(parts) == 1
    for file in files:
        size = (tmp_path / "x" / file).stat().st_size
        assert size < 1200 + 8 + 1000  # the data, and a header
    assert json.loads((tmp_path / "x" / "config.json").read_text())["model_type"] == "toy"
    assert_same(load(tmp_path / "x"), tensors)


def test_dialects_convert_into_one_another_exactly(tmp_path):
    """Through every dialect in turn, NVFP4 keeps its bits, tensor scale included."""
    tensors = {"a.weight": bs.quantize(torch.randn(32, 128), bs.NVFP4, scale="mse")}
    found = tensors
    for step, dialect in enumerate([*OF_NVFP4, *reversed(OF_NVFP4)]):
        save(found, tmp_path / str(step), dialect=dialect)
        found = load(tmp_path / str(step))
    assert_same(found, tensors)


def test_reciprocals_of_reciprocals_are_exact():
    """For every mantissa; a scale that is no reciprocal moves by a rounding, once."""
    from blockscale.checkpoint.dialects.parts import inverse

    every = (torch.arange(2**23, dtype=torch.int32) + 0x3F800000).view(torch.float32)
    scale = inverse(every)
    assert torch.equal(inverse(inverse(scale)), scale)
    moved = inverse(inverse(every))
    assert 0.17 < (moved != every).float().mean() < 0.18
    assert ((moved - every).abs() <= every * 2.0**-23).all()


def test_the_tensor_scales_of_quantize_are_reciprocals():
    from blockscale.checkpoint.dialects.parts import inverse

    amax = torch.rand(20000) * 100
    ours = bs.quantize(amax[:, None].expand(-1, 16), bs.NVFP4, tensor_scale="row").tensor_scale
    assert torch.equal(inverse(inverse(ours)), ours)


def test_a_module_is_saved_with_its_quantised_weights(tmp_path):
    layer = bs.nn.Linear.from_linear(torch.nn.Linear(64, 32), bs.KBIT4)
    model = torch.nn.ModuleDict({"up": layer, "norm": torch.nn.LayerNorm(32)})
    save(model, tmp_path / "x")
    found = load(tmp_path / "x")
    assert found["up.weight"] == layer.weight
    assert found.keys() == {"up.weight", "up.bias", "norm.weight", "norm.bias"}
    assert torch.equal(found["up.bias"], layer.bias)


def test_a_save_replaces_a_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "x.safetensors"
    for seed in range(2):
        tensors = {"a.weight": bs.quantize(torch.full((2, 32), seed + 1.0), bs.KBIT4)}
        save(tensors, path)
        assert_same(load(path), tensors)
    assert list(tmp_path.iterdir()) == [path]


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "checkpoints.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    exec(compile(example, str(page), "exec"), {})


def q(shape=(4, 64), fmt=bs.NVFP4, **kwargs):
    return bs.quantize(torch.randn(shape), fmt, **kwargs)


@pytest.mark.parametrize(
    ("tensors", "dialect", "message"),
    [
        ({"a.weight": q(fmt=bs.KBIT4)}, "modelopt", "nvfp4 and mxfp8, not kbit4"),
        ({"a.weight": q(fmt=bs.MXFP8_E5M2)}, "compressed-tensors", "has no mxfp8_e5m2"),
        ({"a.weight": q((2, 4, 64))}, "compressed-tensors", r"matrices \[n, k\], not \[2, 4, 64\]"),
        ({"experts": q()}, "modelopt", "expected MODULE.weight"),
        ({"a.weight": q(tensor_scale="row")}, "blockscale", "one tensor scale per row"),
        ({"a.weight": q()}, "gguf", "unknown dialect 'gguf'"),
        ({"a.weight": [1.0]}, None, "must be a Tensor or a QTensor, got list"),
        (
            {"a.weight": torch.zeros(2, dtype=torch.complex64)},
            None,
            "which safetensors cannot hold",
        ),
        (
            {"l.q_proj.weight": q(tensor_scale=1.0), "l.k_proj.weight": q(tensor_scale=2.0)},
            "compressed-tensors",
            "l.k_proj.weight has tensor_scale 2 but l.q_proj.weight has 1, and engines fuse",
        ),
        (
            {"a.weight": bs.quantize(torch.tensor([[float("nan")] + [1.0] * 31]), bs.MXFP4)},
            None,
            "a.weight holds NaN or Inf",
        ),
        (
            {"a.weight": bs.quantize(torch.tensor([[float("inf")] + [1.0] * 63]), bs.BNB_NF4)},
            None,
            "a.weight holds NaN or Inf",
        ),
        (
            {
                "a.weight": bs.QTensor.from_storage(
                    bs.MXFP8,
                    torch.full((1, 32), 0x7F, dtype=torch.uint8),
                    torch.full((1, 1), 127, dtype=torch.uint8),
                )
            },
            None,
            "a.weight holds NaN or Inf",
        ),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_what_cannot_be_written_leaves_nothing(tensors, dialect, message, place, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        save(tensors, tmp_path / place, dialect=dialect)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_never_overwritten(tmp_path):
    (tmp_path / "x").mkdir()
    save({"a.weight": q()}, tmp_path / "x")  # an empty one is fine
    before = (tmp_path / "x" / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="exists already"):
        save({"a.weight": q()}, tmp_path / "x")
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == before


def test_blockscale_keeps_scales_of_fused_projections_apart(tmp_path):
    tensors = {"l.q_proj.weight": q(tensor_scale=1.0), "l.k_proj.weight": q(tensor_scale=2.0)}
    save(tensors, tmp_path / "x", dialect="blockscale")
    assert_same(load(tmp_path / "x"), tensors)


@pytest.mark.parametrize(
    "tensors",
    [
        # q of one thing and k of another, which no engine can fuse
        {
            "l.query.weight": q((4, 64), tensor_scale=1.0),
            "l.key.weight": q((4, 128), tensor_scale=2.0),
        },
        # fused with q in some models, and a layer of its own in others
        {"l.q_proj.weight": q(tensor_scale=1.0), "l.g_proj.weight": q(tensor_scale=2.0)},
        {"l.fc1.weight": q(tensor_scale=1.0), "l.fc3.weight": q(tensor_scale=2.0)},
    ],
)
@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_scales_that_may_differ_are_written(tensors, dialect, tmp_path):
    save(tensors, tmp_path / "x", dialect=dialect)
    assert_same(load(tmp_path / "x"), tensors)


@pytest.mark.parametrize("amax", [1e-34, 8e-36, 7.9e-36, 7e-36, 1e-36, 1e-40, 2.0**-149])
@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt", "blockscale"])
def test_weights_near_zero_come_back(amax, dialect, tmp_path):
    tensors = {"a.weight": bs.quantize(torch.full((4, 64), amax), bs.NVFP4)}
    save(tensors, tmp_path / "x", dialect=dialect)
    assert_same(load(tmp_path / "x"), tensors)


def test_a_tensor_scale_without_a_reciprocal_is_refused(tmp_path):
    tensors = {"a.weight": q(tensor_scale=2.0**-129)}
    with pytest.raises(ValueError, match=r"a\.weight: tensor_scale .* is too small"):
        save(tensors, tmp_path / "x", dialect="compressed-tensors")
    assert list(tmp_path.iterdir()) == []
