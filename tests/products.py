"""Products as they are defined, in float64, and checks of a kernel's results against them."""

import torch

from blockscale.numerics import parse_activation
from bounds import UNIT, branch_bound, cast_bound, gated_bound


def scaled(q):
    """decode * scale in float64, by table: no kernel decodes here."""
    table = torch.tensor(q.format.element.values, dtype=torch.float64)
    if q.codebook is not None:
        table = q.codebook.double()
    codes = q.layout.unpack_codes(q.codes, q.format, q.shape).long()
    scale = q.layout.unpack_scale(q.scale, q.format, q.shape)
    if q.format.scale.bits == 32:
        scale = scale.view(torch.float32).double()
    else:
        scale = torch.tensor(q.format.scale.values, dtype=torch.float64)[scale.long()]
    return table[codes] * scale.repeat_interleave(q.format.block, -1)


def spread(q):
    """The tensor scale of every element."""
    if q.tensor_scale is None:
        return torch.ones(())
    per_row = q.tensor_scale.dim() == len(q.shape) - 1
    return q.tensor_scale[(..., None) if per_row else (..., None, None)]


def exact(q):
    """decode * scale * tensor_scale in float64."""
    return scaled(q) * spread(q).double()


def defined(q):
    """fp32(fp32(decode * scale) * tensor_scale)."""
    return scaled(q).float() * spread(q)


def check(y, x, w, out_dtype, x_dtype, bias=None, roundings=1):
    """x [m, k] and w [n, k] in float64."""
    expected = x @ w.mT if bias is None else x @ w.mT + bias.double()
    bound = branch_bound(x, w, expected, x_dtype=x_dtype, bias=bias, roundings=roundings)
    assert y.dtype == out_dtype
    assert y.shape == expected.shape
    assert ((y.double() - expected).abs() <= bound + cast_bound(expected, out_dtype)).all()


def check_exact(y, expected):
    """The reference kernel rounds once: half a unit in the last place, and float64's noise."""
    assert ((y.double() - expected).abs() <= (1 + 2.0**-20) * UNIT[y.dtype] * expected.abs()).all()


def check_gated(
    y, x, gate, up, activation, gate_bias=None, up_bias=None, *, exactly=False, roundings=1
):
    """One gate and one up [n, k]; x [m, k] as it is multiplied."""
    act, wide = parse_activation(activation), x.double()
    branches, bounds = [], []
    for weight, bias in ((gate, gate_bias), (up, up_bias)):
        dense = exact(weight)
        value = wide @ dense.mT
        value = value if bias is None else value + bias.double()
        branches.append(value)
        facts = {"x_dtype": x.dtype, "bias": bias, "roundings": roundings}
        bounds.append(branch_bound(wide, dense, value, **facts))
    g, u = branches
    if act.name == "swiglu_oai":
        g, u = g.clamp(max=act.limit), u.clamp(-act.limit, act.limit) + 1
        expected = g * torch.sigmoid(act.alpha * g) * u
    elif act.name == "silu":
        expected = torch.nn.functional.silu(g) * u
    else:
        approximate = "tanh" if act.name == "gelu_tanh" else "none"
        expected = torch.nn.functional.gelu(g, approximate=approximate) * u
    bound = gated_bound(g, u, expected, *bounds, y.dtype)
    assert y.shape == expected.shape
    assert ((y.double() - expected).abs() <= bound).all()
    if exactly and act.name != "gelu":  # torch's gelu cancels in the lower tail
        assert (
            (y.double() - expected).abs() <= 1.01 * UNIT[y.dtype] * expected.abs() + 1e-12
        ).all()
