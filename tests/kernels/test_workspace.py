"""Memory that launches of a stream share: allocated once, and once for each captured graph."""

import pytest
import torch

from blockscale.kernels.matmul.fragments import product as fragment_product
from blockscale.kernels.matmul.sm90_gemm import workspace as workspaces
from blockscale.runtime.cuda import driver
from replay_machine import NEEDS_EXTENSION, replayed, rows, settle

DEVICE = torch.device("cuda", 0)


class Streams:
    """Which CUDA graph is captured, and what was allocated."""

    def __init__(self, monkeypatch):
        self.capture = None
        self.made = []
        self._held = []  # what is freed may be at the same address again
        monkeypatch.setattr(workspaces, "_kept", {})
        monkeypatch.setattr(workspaces, "_captured", {})
        monkeypatch.setattr(workspaces, "_make", self._make)
        monkeypatch.setattr(driver, "load_driver", lambda: self)
        capturing = lambda: self.capture is not None  # noqa: E731
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)

    def _make(self, device, floats, counters):
        self.made.append((floats, counters))
        self._held.append((torch.empty(floats), torch.zeros(counters, dtype=torch.int32)))
        return self._held[-1]

    def cuStreamGetCaptureInfo_v2(self, stream, status, identity, *others):
        status._obj.value, identity._obj.value = 1, self.capture
        return 0


@pytest.fixture
def streams(monkeypatch):
    return Streams(monkeypatch)


def asked(floats=100, counters=8, stream=7):
    return tuple(part.data_ptr() for part in workspaces.workspace(DEVICE, stream, floats, counters))


def test_launches_of_a_stream_share_one(streams):
    first = asked()
    assert asked(50, 4) == first
    assert asked(stream=8) != first
    assert asked(200, 4) != first
    assert streams.made == [(100, 8), (100, 8), (200, 8)]


def test_a_captured_graph_allocates_one_for_all_its_launches(streams):
    outside = asked()
    streams.capture = 3
    inside = asked()
    assert inside != outside
    assert [asked(), asked(60, 2)] == [inside, inside]
    streams.capture = 4
    assert asked() != inside  # which the graph before may use at the same time
    streams.capture = None
    assert asked() == outside
    assert len(streams.made) == 3


def test_a_driver_that_cannot_tell_graphs_apart(streams, monkeypatch):
    monkeypatch.delattr(Streams, "cuStreamGetCaptureInfo_v2")
    streams.capture = 3
    assert asked() != asked()


@NEEDS_EXTENSION
def test_a_replay_asks_for_it(machine, streams, q, monkeypatch):
    for module in ("fragments.arguments.tensor_map", "fragments.product.matrix_map"):
        monkeypatch.setattr(f"blockscale.kernels.matmul.{module}", lambda *facts: bytes(128))
    x = rows(64)
    plan = machine.plan(q, x, split=True)
    assert isinstance(plan.launch, fragment_product.FragmentProduct)
    settle(x, q)
    assert replayed(q, x) is not None
    machine.stream = 9
    assert replayed(q, x) is not None
    kind = plan.launch._launched.arguments
    by_python, by_c, elsewhere = (kind.from_buffer_copy(at[3]) for at in machine.launches[-3:])
    shared, other = (workspaces._kept[DEVICE, stream] for stream in (7, 9))
    for launched, expected in ((by_python, shared), (by_c, shared), (elsewhere, other)):
        assert launched.partial == expected.sums.data_ptr()
        assert launched.arrivals == expected.counters.data_ptr()
    by_python.out = by_c.out
    assert bytes(by_python) == bytes(by_c)
