"""Calls that C code repeats: DLPack leaves strides out where a tensor is contiguous."""

import ctypes

import pytest
import torch

from replay_machine import LOADED, NEEDS_EXTENSION, K, N, replayed, rows, settle

pytestmark = NEEDS_EXTENSION

NAME = b"dlpack_exchange_api"


class Exchange(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("before", ctypes.c_void_p * 4),
        ("view", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class View(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


LOOK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@pytest.fixture
def without_strides():
    """A torch that says nothing about strides; the other one again, after the test."""
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    python.PyCapsule_New.restype = ctypes.py_object
    python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    capsule = torch.Tensor.__dlpack_c_exchange_api__
    told = Exchange.from_address(python.PyCapsule_GetPointer(capsule, NAME))
    really = LOOK(told.view)

    def look(tensor, view):
        status = really(tensor, view)
        View.from_address(view).strides = None
        return status

    silent = LOOK(look)
    other = Exchange(told.version, told.before, ctypes.cast(silent, ctypes.c_void_p), told.stream)
    more = torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled
    LOADED.use(python.PyCapsule_New(ctypes.addressof(other), NAME, None), *more)
    yield
    LOADED.use(capsule, *more)


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3), ()], ids=str)
def test_tensors_without_strides_are_contiguous(machine, q, without_strides, shape):
    x, bias = rows(*shape), torch.randn(N)
    plan = machine.plan(q, x, bias)
    settle(x, q, bias)
    out = replayed(q, x, bias)
    assert out.shape == (*shape, N)
    told = plan.launch._launched.arguments.from_buffer_copy(machine.launches[-1][3])
    assert (told.x, told.x_stride) == (x.data_ptr(), K)
