"""What the driver is told of a tensor. No GPU is needed: the driver is invented."""

import ctypes
from contextlib import contextmanager

import pytest

from blockscale.runtime.cuda import CudaError, matrix_map, panel_map, tensor_map
from blockscale.runtime.cuda.driver import _SIGNATURES

NAME = "cuTensorMapEncodeTiled"


class Driver:
    def __init__(self, status=0):
        self.status, self.calls, self.inside = status, [], []

    @contextmanager
    def context(self, index):
        self.inside.append(index)
        yield
        self.inside.remove(index)

    def cuTensorMapEncodeTiled(self, to, kind, rank, address, sizes, strides, box, steps, *options):
        assert to % 64 == 0
        assert self.inside, "no context"
        assert len(_SIGNATURES[NAME]) == 8 + len(options)
        self.calls.append((kind, address, list(sizes), list(strides), list(box), options))
        assert list(steps) == [1] * rank
        ctypes.memset(to, 7, 128)
        return self.status


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    facts = tensor_map.__wrapped__.__globals__
    monkeypatch.setitem(facts, "load_driver", lambda: found)
    monkeypatch.setitem(facts, "context", found.context)
    tensor_map.cache_clear()
    yield found
    tensor_map.cache_clear()


def test_rows_of_x(driver):
    assert matrix_map(1, 0x1000, "bfloat16", 5, 4112, 4120, 16, 2) == bytes([7]) * 128
    ((kind, address, sizes, strides, box, options),) = driver.calls
    assert (kind, address) == (9, 0x1000)
    assert (sizes, strides, box) == ([4112, 5], [8240], [64, 16])  # strides are bytes
    assert options == (0, 3, 2, 0)  # swizzled by 128 bytes, zeros outside
    matrix_map(1, 0x1000, "bfloat16", 5, 4112, 4120, 16, 2)
    assert len(driver.calls) == 1
    matrix_map(1, 0x2000, "bfloat16", 5, 4112, 4120, 16, 2)
    assert len(driver.calls) == 2


def test_whole_panels_of_x_are_copied_several_at_a_time(driver):
    matrix_map(1, 0x1000, "bfloat16", 5, 4096, 4104, 16, 2)
    ((_, _, sizes, strides, box, options),) = driver.calls
    assert (sizes, strides, box) == ([64, 5, 64], [8208, 128], [64, 16, 2])
    assert options == (0, 3, 2, 0)


def test_tiles_of_weights(driver):
    tensor_map(0, 0x1000, "uint32", (128, 64, 12), (128, 8192), (128, 4, 8))
    ((kind, _, sizes, strides, box, options),) = driver.calls
    assert kind == 2
    assert (sizes, strides, box) == ([128, 64, 12], [512, 32768], [128, 4, 8])
    assert options[1] == 0


@pytest.mark.parametrize(
    ("dtype", "number", "stride"),
    [("uint8", 0, 4096), ("uint4_slots", 14, 2048), ("uint6_slots", 15, 3072)],
)
def test_panels_of_codes(driver, dtype, number, stride):
    panel_map(0, 0x1000, dtype, 300, 4096, 128)
    ((kind, _, sizes, strides, box, options),) = driver.calls
    assert (kind, sizes, strides, box) == (number, [4096, 300], [stride], [128, 128])
    assert options[1] == 3


def test_what_the_driver_refuses_is_told(driver, monkeypatch):
    driver.status = 1
    monkeypatch.setattr(
        "blockscale.runtime.cuda.driver._words", lambda function, status: "invalid value"
    )
    with pytest.raises(CudaError, match=r"describing uint32 \(128, 64\)"):
        tensor_map(0, 0x1008, "uint32", (128, 64), (128,), (128, 4))
