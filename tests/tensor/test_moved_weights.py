"""Plans on CPUs have the addresses of weights in them, and torch can give a tensor other memory."""

import pytest
import torch

import blockscale as bs
from blockscale.runtime import gpu
from ways import MISSING

pytestmark = pytest.mark.skipif(bool(MISSING), reason=str(MISSING))

N, K, EXPERTS = 32, 128, 3


def weights(experts, format=bs.NVFP4):
    shape = (EXPERTS, N, K) if experts else (N, K)
    return bs.quantize(torch.randn(shape), format).prepare()


def product(x, q):
    return bs.matmul(x, q)


def rows(experts):
    return torch.randn(*((EXPERTS,) if experts else ()), 2, K)


def by_data(tensor, other):
    tensor.data = other.clone()


def by_set(tensor, other):
    tensor.set_(other.clone())


def by_resize(tensor, other):
    tensor.untyped_storage().resize_(2 * tensor.nbytes)
    tensor.copy_(other)


def by_copy(tensor, other):
    tensor.copy_(other)


def by_copy_of_data(tensor, other):
    tensor.data.copy_(other)


def by_numpy(tensor, other):
    tensor.numpy()[...] = other.numpy()


@pytest.mark.fault(
    "weights are moved or written to in any of torch's ways between calls",
    outcome="the next product has the new weights",
)
@pytest.mark.parametrize("change", [by_data, by_set, by_resize, by_copy, by_copy_of_data, by_numpy])
@pytest.mark.parametrize("experts", [False, True])
def test_weights_that_change_are_seen(change, experts):
    q, other, x = weights(experts), weights(experts), rows(experts)
    expected = product(x, other)
    for _ in range(3):
        product(x, q)
    for mine, theirs in zip(q.tensors, other.tensors, strict=True):
        change(mine, theirs)
    torch.full((1 << 16,), 255, dtype=torch.uint8)  # memory that was freed is likely to be taken
    for _ in range(3):
        assert torch.equal(product(x, q), expected)


@pytest.mark.parametrize("experts", [False, True])
def test_copies_in_inference_mode_are_seen(experts):
    with torch.inference_mode():
        q, other, x = weights(experts, bs.KBIT4), weights(experts, bs.KBIT4), rows(experts)
        other.codebook.copy_(torch.linspace(-0.5, 1, 16))
        expected = product(x, other)
        for _ in range(3):
            product(x, q)
        for mine, theirs in zip(q.tensors, other.tensors, strict=True):
            mine.copy_(theirs)
        assert torch.equal(product(x, q), expected)


@pytest.mark.fault("the storage of a weight is freed", outcome="ValueError with both sizes")
@pytest.mark.parametrize("size", [0, 100])
@pytest.mark.parametrize("planned", [False, True])
def test_weights_that_were_freed_are_refused(size, planned):
    q, x = weights(experts=False), rows(experts=False)
    for _ in range(3 if planned else 0):
        product(x, q)
    q.codes.untyped_storage().resize_(size)
    with pytest.raises(ValueError, match=rf"needs 2048 bytes and its storage has {size}"):
        product(x, q)


@pytest.mark.fault(
    "a weight is given memory of another shape", outcome="ValueError with both shapes"
)
@pytest.mark.parametrize("planned", [False, True])
def test_memory_of_another_shape_is_refused(planned):
    q, x = weights(experts=False), rows(experts=False)
    for _ in range(3 if planned else 0):
        product(x, q)
    q.scale.data = torch.zeros(7, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"scale of w must be .* got \[7\]"):
        product(x, q)


def test_moved_weights_let_their_old_memory_go():
    q, x = weights(experts=True), rows(experts=True)
    for m in (1, 2):
        product(x[:, :m], q)
    assert len(q.plans) == 2
    q.codes.data = q.codes.clone()
    product(x, q)
    assert len(q.plans) == 1


def test_frozen_is_a_promise_about_these_bytes():
    q = bs.quantize(torch.randn(4, N, K), bs.KBIT4).freeze()
    assert q.frozen
    assert q[1:3].frozen  # views
    assert q.freeze() is q
    for copied in (
        q.clone(),
        q.pack("blocked"),
        bs.quantize(torch.randn(N, K), bs.NVFP4),
    ):
        assert not copied.frozen
    assert q.clone() == q


def test_prepared_bytes_are_nobody_elses_and_frozen():
    layout = bs.layouts.layout("fragments/fragments")  # which no CPU reads
    q = bs.quantize(torch.randn(N, K), bs.KBIT2).pack(layout)
    ready = q.prepare()
    assert ready.frozen
    assert ready.prepare() is ready
    before = ready.dequantize()
    q.codebook.zero_()
    q.tensor_scale.zero_()
    assert torch.equal(ready.dequantize(), before)
    with torch.inference_mode():
        assert not bs.quantize(torch.randn(N, K), bs.KBIT2).pack(layout).prepare().frozen


@pytest.fixture
def blackwell(monkeypatch):
    """Weights here are prepared as for a GPU whose kernels leave the codes where they are."""
    for module in ("tensor.qtensor", "nn.packed"):
        monkeypatch.setattr(f"blockscale.{module}.device_of", lambda device: gpu("b200"))


def addresses(q):
    return {tensor.data_ptr() for tensor in q.tensors}


def test_prepared_bytes_are_new_where_layouts_place_them_alike(blackwell):
    q = bs.quantize(torch.randn(128, K), bs.NVFP4)
    ready = q.prepare(x_format=bs.NVFP4)
    assert ready.layout == q.pack("blocked").layout
    assert ready.frozen
    assert not addresses(q) & addresses(ready)
    with torch.inference_mode():
        assert not addresses(q) & addresses(q.prepare(x_format=bs.NVFP4))


@pytest.mark.parametrize("inference", [False, True])
def test_a_module_copies_what_it_shares_once(blackwell, monkeypatch, inference):
    with torch.inference_mode(inference):
        given = bs.quantize(torch.randn(128, K), bs.NVFP4)
    layer, clone, cloned = (
        bs.nn.Linear.from_qtensor(given, x_format=bs.NVFP4),
        torch.Tensor.clone,
        [],
    )

    def counted(tensor, **named):
        cloned.append(tensor)
        return clone(tensor, **named)

    monkeypatch.setattr(torch.Tensor, "clone", counted)
    layer.prepare()
    assert len(cloned) == 2  # codes and the tensor scale: blocked scales are new
    assert not addresses(given) & addresses(layer.weight)
    assert layer.weight.frozen


def test_modules_freeze_what_they_pack():
    layer = bs.nn.Linear.from_linear(torch.nn.Linear(K, N), bs.NVFP4)
    assert not layer.weight.frozen  # the bytes may be somebody else's
    layer.prepare()
    assert layer.weight.frozen
    assert layer.to("cpu").weight.frozen
    layer.load_state_dict(layer.state_dict())
    assert not layer.weight.frozen
    layer(torch.randn(1, K))
    assert layer.weight.frozen
    given = bs.quantize(torch.randn(N, K), bs.NVFP4)
    shared = bs.nn.Linear.from_qtensor(given.pack(given.prepare().layout))
    shared.prepare()
    assert not shared.weight.frozen  # nothing was packed: the memory is the caller's


def test_what_a_module_freezes_is_its_own():
    given = bs.quantize(torch.randn(N, K), bs.KBIT4)
    layer = bs.nn.Linear.from_qtensor(given)
    layer.prepare()
    assert not addresses(given) & addresses(layer.weight)
