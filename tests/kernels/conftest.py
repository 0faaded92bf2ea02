import pytest
import torch

import ways


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
