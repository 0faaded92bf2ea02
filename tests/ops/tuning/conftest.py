"""Results of tuning in a folder of the test's own, an invented clock, and kernels put in place."""

import pytest

from blockscale import ops
from blockscale.kernels import KERNELS
from blockscale.ops.tuning import contest
from ops.tuning.fakes import Clock, forget


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BLOCKSCALE_TUNED")
    monkeypatch.setattr(contest, "ring_bytes", lambda device: 4096)
    forget()
    yield tmp_path / "cache" / "tuned"
    forget()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def install(monkeypatch):
    def put(*kernels, verb="matmul"):
        monkeypatch.setitem(KERNELS, verb, (*kernels, KERNELS[verb][-1]))
        ops.choose.cache_clear()

    return put
