"""bs.deterministic(): no product is left to torch, whose bits depend on the number of threads."""

import threading

import pytest
import torch

import blockscale as bs
import ways
from blockscale.runtime import is_deterministic

# Codes of 7 bits: the native products do not know them.
SEVEN = bs.NVFP4.replace(
    name="e3m3_block64", element="e3m3", block=64, scale="e8m0", tensor_scale="none"
)
needs_native = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


@needs_native
def test_products_that_torch_would_multiply_go_elsewhere_and_explain_says_so():
    w, x = bs.quantize(torch.randn(40, 128), SEVEN).prepare(), torch.randn(3, 128)
    outside = bs.explain(x, w)
    assert outside.kernel == "cpu"
    assert "torch multiplies: bits depend on threads (bs.deterministic() avoids it)" in str(outside)
    y = bs.matmul(x, w)
    with bs.deterministic():
        inside = bs.explain(x, w)
        assert inside.kernel == "reference"
        assert "to torch, whose bits depend on threads" in str(inside)
        torch.testing.assert_close(bs.matmul(x, w), y)
    assert bs.explain(x, w).kernel == "cpu"


@needs_native
def test_products_of_native_code_stay_there():
    w, x = bs.quantize(torch.randn(40, 128), bs.NVFP4).prepare(), torch.randn(3, 128)
    y = bs.matmul(x, w)
    with bs.deterministic():
        assert bs.explain(x, w).kernel == "cpu"
        assert torch.equal(bs.matmul(x, w), y)


@needs_native
def test_gradients_heed_it_too():
    w, x = bs.quantize(torch.randn(40, 128), bs.NVFP4), torch.randn(3, 128, requires_grad=True)
    with bs.deterministic():
        bs.matmul(x, w).sum().backward()
    torch.testing.assert_close(x.grad, w.dequantize().sum(0).expand(3, -1))


def test_it_nests_and_ends():
    assert not is_deterministic()
    with bs.deterministic():
        with bs.deterministic():
            assert is_deterministic()
        assert is_deterministic()
    assert not is_deterministic()
    with pytest.raises(RuntimeError, match="inside"), bs.deterministic():
        raise RuntimeError("inside")
    assert not is_deterministic()


def test_it_holds_for_the_thread_that_asked():
    entered, seen = threading.Event(), []

    def other():
        entered.wait(10)
        seen.append(is_deterministic())

    thread = threading.Thread(target=other)
    thread.start()
    with bs.deterministic():
        entered.set()
        thread.join(10)
        assert is_deterministic()
    assert seen == [False]
