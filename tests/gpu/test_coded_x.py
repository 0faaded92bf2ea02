"""Few rows of quantised x, which the kernel decodes itself. Skipped where there is no GPU."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import stream
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.work import decodes_x
from blockscale.layouts import canonical
from blockscale.ops.operand import as_groups, as_rows
from kinds import one_of_each_kind
from products import check, check_gated, exact, scaled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CODED = [bs.NVFP4, bs.MXFP4]
LARGEST_SCALE = {bs.NVFP4: 126, bs.MXFP4: 220}  # codes; sums with weights stay finite too


def random_x(fmt, *shape):
    """Any codes, and any scales that keep numbers finite."""
    place, high = canonical(fmt), LARGEST_SCALE[fmt] + 1
    codes = torch.randint(0, 256, place.code_storage_shape(fmt, shape), dtype=torch.uint8)
    scale = torch.randint(0, high, place.scale_storage_shape(fmt, shape), dtype=torch.uint8)
    q = bs.QTensor.from_storage(fmt, codes, scale)
    if not fmt.has_tensor_scale:
        return q
    return replace(q, tensor_scale=torch.rand(shape[:-1]) + 0.5)


def gentle_x(fmt, *shape):
    return bs.quantize(torch.randn(shape), fmt)


def weight(fmt, *shape):
    q = bs.quantize(torch.randn(shape), fmt)
    return q, q.prepare("cuda")


def problem_of(x, w):
    told = bs.explain(x, w)
    assert told.kernel == "stream", str(told)
    assert decodes_x(stream.configs(told.problem)[0], facts_of(told.problem))
    return told.problem


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("coded", CODED, ids=str)
def test_one_hot_weights_read_single_numbers(coded, m):
    """Every code with every finite scale: no sum, so nothing is rounded."""
    k = 4096
    x = random_x(coded, m, k)
    at = torch.randperm(k)[:512]
    w = bs.quantize(torch.nn.functional.one_hot(at, k).float(), bs.MXFP8).prepare("cuda")
    problem_of(x.to("cuda"), w)
    y = bs.matmul(x.to("cuda"), w, out_dtype=torch.float32).cpu()
    rows = 1.0 if x.tensor_scale is None else x.tensor_scale[:, None]
    assert torch.equal(y, scaled(x)[:, at].float() * rows)


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("w_format", [bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.MXFP8], ids=str)
@pytest.mark.parametrize("coded", CODED, ids=str)
def test_every_config(coded, w_format, m):
    q, w = weight(w_format, 130, 1280)
    x = gentle_x(coded, m, 1280)
    rows = as_rows(x.to("cuda").operand)
    problem = problem_of(x.to("cuda"), w)
    roundings = 2 if w_format.is_codebook else 0
    for config in one_of_each_kind(stream.configs(problem)):
        for splits in (1, 2, 5):
            out = torch.full((m, 130), float("nan"), dtype=torch.bfloat16, device="cuda")
            chosen = replace(config, splits=splits)
            launch = stream.bind(problem, chosen, (as_groups(w.operand),))
            launch(rows, (None,), None, out)
            check(
                out.cpu(), exact(x), exact(q), torch.bfloat16, torch.bfloat16, roundings=roundings
            )


@pytest.mark.parametrize("k", [16, 48, 256, 272, 2064, 16384])
def test_any_k(k):
    q, w = weight(bs.NVFP4, 40, k)
    for m in (1, 4):
        x = gentle_x(bs.NVFP4, m, k)
        y = bs.matmul(x.to("cuda"), w, out_dtype=torch.float32).cpu()
        check(y, exact(x), exact(q), torch.float32, torch.bfloat16, roundings=0)


@pytest.mark.parametrize("coded", CODED, ids=str)
def test_batches(coded):
    q, w = weight(bs.NVFP4, 5, 48, 192)
    for m in (1, 3):
        x = gentle_x(coded, 5, m, 192)
        y = bs.matmul(x.to("cuda"), w).cpu()
        for i in range(5):
            check(y[i], exact(x)[i], exact(q)[i], torch.bfloat16, torch.bfloat16, roundings=0)


def test_gated_and_grouped():
    gate, g = weight(bs.NVFP4, 6, 64, 256)
    up, u = weight(bs.NVFP4, 6, 64, 256)
    sizes = torch.tensor([1, 0, 2, 1, 0, 4])
    x = gentle_x(bs.MXFP4, 8, 256)  # has no tensor scale: bfloat16 holds its numbers
    y = bs.grouped_matmul(x.to("cuda"), g, sizes.cuda()).cpu()
    both = bs.grouped_gated_matmul(x.to("cuda"), g, u, sizes.cuda()).cpu()
    ends = [0, *sizes.cumsum(0).tolist()]
    for i in range(6):
        part = slice(ends[i], ends[i + 1])
        if ends[i] < ends[i + 1]:
            check(
                y[part],
                exact(x)[part],
                exact(gate)[i],
                torch.bfloat16,
                torch.bfloat16,
                roundings=0,
            )
            values = exact(x)[part].bfloat16()
            check_gated(both[part], values, gate[i], up[i], "silu", roundings=0)


def test_a_scale_that_is_no_number_is_of_its_row_alone():
    q, w = weight(bs.NVFP4, 32, 512)
    x = gentle_x(bs.NVFP4, 4, 512)
    x.scale[2, 7] = 127
    y = bs.matmul(x.to("cuda"), w).cpu()
    assert y[2].isnan().all()
    others = [0, 1, 3]
    check(y[others], exact(x)[others], exact(q), torch.bfloat16, torch.bfloat16, roundings=0)


def test_rows_that_lie_anywhere():
    _, w = weight(bs.NVFP4, 64, 512)
    x = gentle_x(bs.NVFP4, 7, 512).to("cuda")
    expected = bs.matmul(x[2:5], w)
    codes = torch.empty(3 * 256 + 1, dtype=torch.uint8, device="cuda")
    scale = torch.empty(3 * 32 + 3, dtype=torch.uint8, device="cuda")
    codes[1:].copy_(x.codes[2:5].flatten())
    scale[3:].copy_(x.scale[2:5].flatten())
    unaligned = replace(x[2:5], codes=codes[1:].view(3, 256), scale=scale[3:].view(3, 32))
    assert torch.equal(bs.matmul(unaligned, w), expected)


def test_calls_that_follow_each_other():
    """Weights are read ahead of the kernel before, from the third call on; x never is."""
    _, w = weight(bs.NVFP4, 256, 1024)
    every = [gentle_x(bs.NVFP4, 1, 1024).to("cuda") for _ in range(20)]
    held = gentle_x(bs.NVFP4, 1, 1024).to("cuda")
    alone = []
    for x in every:
        alone.append(bs.matmul(x, w))
        torch.cuda.synchronize()
    for _ in range(3):
        together = []
        for x in every:
            held.codes.copy_(x.codes)
            held.scale.copy_(x.scale)
            held.tensor_scale.copy_(x.tensor_scale)
            together.append(bs.matmul(held, w))
        torch.cuda.synchronize()
        assert all(map(torch.equal, together, alone))
    assert len(w.plans) == 1
