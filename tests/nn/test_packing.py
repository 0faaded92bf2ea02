"""The first use of a module packs its weights: once, whoever comes meanwhile, and as a whole."""

import copy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import blockscale as bs
import hanging
from blockscale.nn import handover, packed
from blockscale.tensor import QTensor


def layer_of():
    q = bs.quantize(torch.linspace(-1, 1, 48 * 64).view(48, 64), bs.KBIT4)
    return bs.nn.Linear.from_qtensor(q)


@pytest.fixture
def blocked(monkeypatch):
    """Packing into a layout that is not the canonical one, which every kernel reads."""
    target = layer_of().weight.pack("blocked").layout
    monkeypatch.setattr(packed.ops, "prepared_layout", lambda *which: target)
    monkeypatch.setattr(QTensor, "prepare", lambda q, x_format=None: q.pack(target))
    return target


class Interruption(BaseException):
    """As KeyboardInterrupt, which would end the tests."""


def interrupt(work, nth):
    """Raises at the nth place in packed.py where Python lets signals in: where a function begins,
    or one of C has ended. False where there are fewer."""
    left = nth

    def on_event(frame, event, argument):
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename == packed.__file__:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise Interruption

    sys.setprofile(on_event)
    try:
        work()
    except Interruption:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.fault(
    "a signal interrupts the first use of a module, which packs its weights, at any place",
    outcome="the weights are packed or they are not: the next use has the right result",
)
def test_packing_that_is_interrupted_leaves_the_weights_whole(blocked):
    x = torch.randn(3, 64)
    expected, nth, interrupted = layer_of()(x), 0, True
    while interrupted:
        nth += 1
        layer = layer_of()
        interrupted = interrupt(lambda layer=layer: layer(x), nth)
        assert layer.weight.dequantize().equal(layer_of().weight.dequantize()), nth
        assert layer(x).equal(expected), nth
        assert layer.weight.layout == blocked
    assert nth > 10


def test_threads_that_come_at_once_pack_once(blocked, monkeypatch):
    layer, x, packs = layer_of(), torch.randn(3, 64), []
    others_came = threading.Event()

    def prepare(q, x_format=None):
        packs.append(q)
        others_came.wait(0.2)
        return q.pack(blocked)

    monkeypatch.setattr(QTensor, "prepare", prepare)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: layer(x), range(4), timeout=hanging.SECONDS))
    assert len(packs) == 1
    assert all(result.equal(results[0]) for result in results)


def test_a_weight_is_seen_as_a_whole_while_another_thread_packs_it(blocked):
    expected, x, done = layer_of().weight.dequantize(), torch.randn(3, 64), threading.Event()
    layers = [layer_of() for _ in range(20)]

    def look():
        while not done.is_set():
            for layer in layers:
                if not layer.weight.dequantize().equal(expected):
                    return False
        return True

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            for layer in layers:
                layer(x)
        finally:
            done.set()
        assert looking.result(hanging.SECONDS)


class Stream:
    def __init__(self, address):
        self.cuda_stream, self.waited = address, []

    def wait_event(self, event):
        self.waited.append(event)


class Event:
    def record(self, stream):
        self.after = stream

    def synchronize(self):
        self.synchronized = True


class Bytes:
    """Stands in for a tensor on a GPU."""

    def __init__(self):
        self.used_on = []

    def record_stream(self, stream):
        self.used_on.append(stream)


@pytest.fixture
def cuda(monkeypatch):
    """A device with streams that note what they are told."""

    class Cuda:
        stream, capturing = Stream(1), False
        Event = Event

        @classmethod
        def current_stream(cls, device):
            return cls.stream

        @classmethod
        def is_current_stream_capturing(cls):
            return cls.capturing

    monkeypatch.setattr(handover.torch, "cuda", Cuda)
    return Cuda


def test_another_stream_waits_for_the_packing_once(cuda):
    packing, other, tensor = cuda.stream, Stream(2), Bytes()
    given = handover.Handover([tensor], torch.device("cuda", 0))
    given.use_here()
    assert packing.waited == tensor.used_on == []
    cuda.stream = other
    for _ in range(3):
        given.use_here()
    (event,) = other.waited
    assert event.after is packing
    assert tensor.used_on == [other]


def test_a_graph_does_not_wait_for_what_is_not_part_of_it(cuda):
    given = handover.Handover([tensor := Bytes()], torch.device("cuda", 0))
    cuda.stream, cuda.capturing = Stream(2), True
    given.use_here()
    assert cuda.stream.waited == []
    assert tensor.used_on == [cuda.stream]
    cuda.capturing = False
    given.use_here()
    assert len(cuda.stream.waited) == 1


def test_packing_in_a_graph_is_refused(cuda):
    cuda.capturing = True
    with pytest.raises(RuntimeError, match=r"call module.prepare\(\), or the module once, before"):
        handover.refuse_capture(torch.device("cuda", 0))
    handover.refuse_capture(torch.device("cpu"))


def test_every_way_to_the_bytes_waits_for_the_packing(blocked, monkeypatch):
    layer, x = layer_of(), torch.randn(3, 64)
    layer(x)
    uses = []

    class Noted:
        def use_here(self):
            uses.append(1)

        def __reduce__(self):
            raise AssertionError("events cannot be copied")

    layer._hold("weight", layer.weight, Noted())
    ways = {
        "forward": lambda: layer(x),
        "weight": lambda: layer.weight,
        "state_dict": layer.state_dict,
        "deepcopy": lambda: copy.deepcopy(layer),
        "to": lambda: layer.to("cpu"),
    }
    for name, way in ways.items():
        uses.clear()
        way()
        assert uses, name
