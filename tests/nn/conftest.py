"""Layouts of another machine, tiny models, and a compiler that starts afresh."""

import pytest
import torch

from blockscale import ops
from blockscale.layouts import Layout, canonical
from tiny_models import EXTRA, make_tiny


@pytest.fixture(params=["blocked", "cpu_tiles"])
def foreign(request, monkeypatch):
    """As on a machine whose kernels read another layout than the canonical one."""

    def prepared_layout(format, target, x_format=None):
        codes = "cpu_tiles" if request.param == "cpu_tiles" else canonical(format).codes
        return Layout(codes, request.param)

    monkeypatch.setattr(ops, "prepared_layout", prepared_layout)
    return prepared_layout


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture(params=EXTRA)
def tiny_model(request):
    pytest.importorskip("transformers")
    return make_tiny(request.param)
