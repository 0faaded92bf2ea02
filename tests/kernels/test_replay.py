"""Calls that C code repeats: what it launches is what Python would."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul.fragments import product as fragment_product
from blockscale.ops import replay
from replay_machine import NEEDS_EXTENSION, K, N, experts, replayed, rows, settle, without_out

pytestmark = NEEDS_EXTENSION


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 1), (1, 1), (2, 1, 2), ()], ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_launches_what_python_would(machine, q, shape, biased, dtype):
    x, bias = rows(*shape, dtype=dtype), torch.randn(N) if biased else None
    plan = machine.plan(q, x, bias)
    settle(x, q, bias)
    out = replayed(q, x, bias)
    assert out.shape == (*shape, N)
    assert out.dtype == dtype
    assert out.is_contiguous()
    by_python, by_c = machine.launches[-2:]
    kind = plan.launch._launched.arguments
    assert without_out(by_c, kind) == without_out(by_python, kind)
    arguments = kind.from_buffer_copy(by_c[3])
    assert arguments.out == out.data_ptr()
    assert arguments.weights_unchanged == 1
    assert by_c[0][7] == 7  # the stream


GATED = [(True, biased, dtype) for biased in ((0, 0), (1, 1), (0, 1)) for dtype in (None, "int64")]


GROUPED = [(False, (each, 0), dtype) for each in (0, 1) for dtype in ("int32", "int64")]


@pytest.mark.parametrize(("gated", "biased", "dtype"), [*GATED, *GROUPED])
def test_other_verbs_are_launched_as_python_would(machine, unread, gated, biased, dtype):
    gate, up = (experts() if dtype else experts()[0] for _ in range(2))
    x = rows(5)
    shape = (3, N) if dtype else (N,)
    biases = [torch.randn(shape) if each else None for each in biased]
    sizes = None if dtype is None else torch.tensor([1, 0, 4], dtype=getattr(torch, dtype))
    plan = machine.plan(gate, x, biases[0], up=(up, biases[1]) if gated else None, sizes=sizes)

    def call():
        if not gated:
            return bs.grouped_matmul(x, gate, sizes, biases[0])
        if sizes is None:
            return bs.gated_matmul(x, gate, up, "silu", *biases)
        return bs.grouped_gated_matmul(x, gate, up, sizes, "silu", *biases)

    for _ in range(3):
        call()
    assert len(gate.replays) == 1
    more = (up, "silu") if gated else (None, None)
    out = replayed(gate, x, biases[0], biases[1] if gated else None, sizes, *more)
    assert out.shape == (5, N)
    by_python, by_c = machine.launches[-2:]
    kind = plan.launch._launched.arguments
    assert without_out(by_c, kind) == without_out(by_python, kind)
    arguments = kind.from_buffer_copy(by_c[3])
    assert arguments.out == out.data_ptr()
    launched = len(machine.launches)
    assert call().shape == (5, N)
    assert len(machine.launches) == launched + 1


def test_kernels_that_need_a_map_of_x_get_it(machine, q, monkeypatch):
    asked = []

    def invented(*facts):
        asked.append(facts)
        return bytes([len(asked)]) * 128

    monkeypatch.setattr("blockscale.kernels.matmul.fragments.arguments.tensor_map", invented)
    monkeypatch.setattr(fragment_product, "matrix_map", invented)
    x = rows(64)
    plan = machine.plan(q, x, wide=True)
    settle(x, q)
    assert replayed(q, x) is not None
    assert asked[-1] == asked[-2]
    by_python, by_c = (
        plan.launch._launched.arguments.from_buffer_copy(at[3]) for at in machine.launches[-2:]
    )
    assert bytes(by_c.x_map) == bytes([len(asked)]) * 128
    by_python.x_map, by_python.out = by_c.x_map, by_c.out
    assert bytes(by_python) == bytes(by_c)
    overlapping = rows(1).expand(64, K)
    assert replayed(q, overlapping) is None


def test_rows_of_something_larger_are_taken_where_they_are(machine, q):
    x = torch.randn(4, 2 * K).bfloat16()[:, :K]
    plan = machine.plan(q, x)
    settle(x, q)
    assert replayed(q, x) is not None
    arguments = plan.launch._launched.arguments.from_buffer_copy(machine.launches[-1][3])
    assert (arguments.x, arguments.x_stride) == (x.data_ptr(), 2 * K)


@pytest.mark.parametrize("cut", [(slice(None), slice(-1, None)), (slice(None), slice(0, 1))])
def test_the_last_of_many_tokens(machine, q, cut):
    x = rows(3, 5)[cut]
    plan = machine.plan(q, x)
    settle(x, q)
    assert replayed(q, x) is not None
    by_python, by_c = machine.launches[-2:]
    kind = plan.launch._launched.arguments
    assert without_out(by_c, kind) == without_out(by_python, kind)
    assert kind.from_buffer_copy(by_c[3]).x_stride == 5 * K


def test_other_streams_and_devices(machine, q):
    x = rows(1)
    machine.plan(q, x)
    settle(x, q)
    machine.stream = 2**63 + 11
    assert replayed(q, x) is not None
    assert machine.launches[-1][0][7] == 2**63 + 11
    machine.device = 1
    assert replayed(q, x) is None


def test_several_shapes_are_kept_and_not_too_many(machine, q):
    every = [rows(m) for m in range(1, replay._MOST + 4)]
    for x in every:
        machine.plan(q, x)
        for _ in range(4):
            bs.matmul(x, q)
    kept = list(q.replays)
    assert len(kept) == replay._MOST
    found = [replayed(q, x) is not None for x in every]
    assert found == [True] * replay._MOST + [False] * 3
    bs.matmul(every[-1], q)
    assert q.replays == kept  # others do not make room: each would be made again and again
    q.scale.copy_(q.scale)
    settle(every[-1], q)
    assert replayed(q, every[-1]) is not None  # those before it are of no use any more
    assert len(q.replays) <= replay._MOST
