"""Weights for tests of the streaming kernel, and the tolerance of what it computes."""

import torch

import blockscale as bs
from blockscale.layouts import canonical
from products import check as check_product
from products import check_gated as check_gated_product


def roundings(q):
    """Entries of a codebook are rounded to x's dtype, and their products with scales may be; floats
    are exact."""
    return 2 if q.format.is_codebook else 0


def check(q, *facts, **more):
    check_product(*facts, **more, roundings=roundings(q))


def check_gated(y, x, gate, up, *facts, **more):
    check_gated_product(y, x, gate, up, *facts, **more, roundings=roundings(gate))


SOME = [bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.MXFP8]


def weight(fmt, *shape):
    q = bs.quantize(torch.randn(*shape) * torch.exp2(torch.randint(-3, 4, (shape[-2], 1))), fmt)
    return q, q.prepare("cuda")


def runs(kernel, *arguments, **options):
    told = bs.explain(*arguments, **options)
    assert told.kernel == kernel, str(told)


def random_bytes(fmt, n, k):
    """Every code and every scale byte, NaN and unused ones too."""
    place, shape = canonical(fmt), (n, k)
    codes = torch.randint(0, 256, place.code_storage_shape(fmt, shape), dtype=torch.uint8)
    scale = torch.randint(0, 256, place.scale_storage_shape(fmt, shape), dtype=torch.uint8)
    return bs.QTensor.from_storage(fmt, codes, scale)
