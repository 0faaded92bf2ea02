"""The reference kernels work in row panels; the cut must not show."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels import panels
from blockscale.ops import choose


@pytest.fixture
def narrow(monkeypatch):
    """Panels of one to three rows."""

    def use():
        monkeypatch.setattr(panels, "_ELEMENTS", 200)
        choose.cache_clear()

    yield use
    choose.cache_clear()


def test_panels_give_what_one_pass_gives(narrow, fmt):
    raw, x = torch.randn(2, 7, 256), torch.randn(2, 5, 256)
    leaf, sizes = x[0].clone().requires_grad_(), torch.tensor([2, 3])

    def everything():
        q = bs.quantize(raw, fmt)
        leaf.grad = None
        bs.matmul(leaf, q[0]).square().sum().backward()
        gated = bs.gated_matmul(x[0], q[0], q[1])
        return (
            *q.tensors,
            q.dequantize(),
            bs.matmul(x, q),
            gated,
            bs.grouped_matmul(x[0], q, sizes),
            leaf.grad,
        )

    whole = everything()
    narrow()
    for a, b in zip(everything(), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
