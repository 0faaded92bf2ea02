"""What tuning times is right: the tolerance passes every kernel that is, and none that is not."""

import pytest
import torch

from blockscale.kernels.matmul import cpu, reference
from blockscale.ops.agreement import disagreement
from blockscale.ops.tuning import agreement
from blockscale.ops.tuning.agreement import tolerance
from blockscale.ops.tuning.operands import entries_of_a_ring, make_operands
from blockscale.runtime import load_native
from ops.tuning.fakes import CPU, problem

needs_native = pytest.mark.skipif(isinstance(load_native(), str), reason=str(load_native()))

PRODUCTS = [
    {"m": 5, "n": 40, "k": 256},
    {"m": 3, "n": 40, "k": 256, "groups": 2},
    {"verb": "gated_matmul", "gated": True, "activation": "swiglu_oai", "k": 512},
    {
        "verb": "grouped_gated_matmul", "m": 9, "groups": 4, "ragged": True,
        "gated": True, "activation": "gelu",
    },
    {"x": "float32", "out": "float32", "k": 1024},
    {"x": "float16", "out": "float16"},
    {"x": "int8/32:f32@bits/rows"},
    {"x": "e4m3/32:e8m0@bits/rows", "out": "float32"},
]  # fmt: skip
WEIGHTS = ["e2m1/16:ue4m3:amax@bits/rows", "codebook4/32:e4m4:pow2@planes/rows"]


def result(kernel, config, wanted, operands):
    entry = operands.ring[0]
    out = torch.full((wanted.rows, wanted.n), float("nan"), dtype=wanted.out_dtype)
    biases = (None,) * len(entry.weights)
    launch = kernel.bind(wanted, config, entry.weights)
    launch(operands.rows, biases, entry.group_sizes, out)
    return out


@pytest.fixture(params=range(len(PRODUCTS)))
def wanted(request):
    return PRODUCTS[request.param]


@pytest.mark.parametrize("w", WEIGHTS)
def test_operands_are_the_same_each_time(wanted, w):
    wanted = problem(w=w, **wanted)
    first, second = (make_operands(wanted, CPU, 1) for _ in range(2))
    config = reference.configs(wanted)[0]
    expected = result(reference, config, wanted, first)
    assert torch.equal(result(reference, config, wanted, second), expected)
    assert expected.isfinite().all()


@needs_native
@pytest.mark.parametrize("w", WEIGHTS)
def test_every_kernel_agrees_with_the_definition(wanted, w):
    wanted = problem(w=w, **wanted)
    operands = make_operands(wanted, CPU, 1)
    expected = result(reference, reference.configs(wanted)[0], wanted, operands)
    allowed = tolerance(wanted, operands)
    for config in cpu.configs(wanted):
        ours = result(cpu, config, wanted, operands)
        assert disagreement(wanted, ours, expected, allowed) is None, config


@pytest.mark.parametrize("w", WEIGHTS)
def test_a_product_that_forgets_a_part_of_k_does_not_agree(wanted, w):
    wanted = problem(w=w, **wanted)
    operands = make_operands(wanted, CPU, 1)
    config = reference.configs(wanted)[0]
    expected = result(reference, config, wanted, operands)
    allowed = tolerance(wanted, operands)
    x = operands.x.tensors[0]
    x[:, -x.shape[1] // 8 :] = 0
    short = result(reference, config, wanted, operands)
    said = disagreement(wanted, short, expected, allowed)
    assert said is not None
    assert "values are wrong" in said


@pytest.mark.parametrize("w", WEIGHTS)
def test_weights_may_be_decoded_in_pieces(w, monkeypatch):
    wanted = problem(w=w, n=40)
    operands = make_operands(wanted, CPU, 1)
    whole = tolerance(wanted, operands)
    monkeypatch.setattr(agreement, "_PANEL_ELEMENTS", 7 * wanted.k)
    torch.testing.assert_close(tolerance(wanted, operands), whole)


@pytest.mark.parametrize(
    ("ragged", "device", "touched", "entries"),
    [
        (False, "cuda", 500, 1),
        (True, "cuda", 500, 32),  # many routings, however much each reads
        (True, "cuda", 4, 75),
        (True, "cpu", 500, 1),  # a GPU alone is timed on more routings than its caches ask for
        (True, "cuda", 1, 256),
    ],
)
def test_a_ring_has_as_many_entries_as_caches_and_routings_ask_for(
    ragged, device, touched, entries
):
    asked = problem(groups=4, ragged=ragged)
    assert entries_of_a_ring(asked, 300, touched, device) == entries


def test_what_was_not_written_does_not_agree():
    wanted = problem()
    operands = make_operands(wanted, CPU, 1)
    expected = result(reference, reference.configs(wanted)[0], wanted, operands)
    holed = expected.clone()
    holed[1, 3] = float("nan")
    said = disagreement(wanted, holed, expected, tolerance(wanted, operands))
    assert said.startswith("1 of 96 values are wrong: at [1, 3] nan where the rule's choice has")
