import pytest
import torch

import blockscale as bs
import ways
from blockscale.kernels.cuda.layout import fragments
from blockscale.tensor import plan_cache
from replay_machine import K, Machine, N


@pytest.fixture(params=ways.EVERY, ids=str)
def kernel(request):
    """Every registered kernel, and every algorithm of the native one on prepared weights."""
    if request.param.name == "cpu" and ways.MISSING:
        pytest.skip(ways.MISSING)
    with request.param.only() as way:
        yield way


@pytest.fixture(params=ways.NATIVE or [None], ids=str)
def native_way(request):
    """Every algorithm of the native kernel, on every instruction set of this machine."""
    if request.param is None:
        pytest.skip(ways.MISSING)
    with request.param.only() as way:
        yield way


@pytest.fixture
def threads():
    """Sets torch's number of threads, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with torch.no_grad():
        yield Machine(monkeypatch)


@pytest.fixture
def q():
    """Frozen, as modules hold weights."""
    return bs.quantize(torch.randn(N, K), bs.NVFP4).pack(fragments(bs.NVFP4)).freeze()


@pytest.fixture
def unread(monkeypatch):
    """Group sizes, as on a GPU."""
    monkeypatch.setattr(plan_cache, "_sizes_are_read", lambda x: False)
