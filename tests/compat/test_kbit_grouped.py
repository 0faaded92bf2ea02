"""`kbit_grouped_gemm` takes experts in lists and in one tensor, and copies them once at most."""

import gc
import weakref

import pytest
import torch

import blockscale as bs
from blockscale import compat
from blockscale.compat import kbit_grouped
from blockscale.tensor import QTensor

K_DIM, N, SIZES = 64, 40, [2, 0, 5]


class Case:
    def __init__(self):
        self.weights = torch.randn(3, N, K_DIM)
        self.x = torch.randn(sum(SIZES), K_DIM)
        self.rows = list(self.x.split(SIZES))
        self.offsets = torch.tensor([0, 2, 2, 7], dtype=torch.int32)
        made = [compat.quantize_kbit(w, 4) for w in self.weights]
        self.table = made[0][2]
        tiled = [compat.repack_for_gemm(p, a, K_DIM, N, 4) for p, a, _ in made]
        self.codes, self.scales = [t[0] for t in tiled], [t[1] for t in tiled]
        pairs = zip(self.rows, self.weights, strict=True)
        self.expected = torch.cat([bs.matmul(x, bs.quantize(w, bs.KBIT4)) for x, w in pairs])

    def run(self, x, codes, scales, *offsets, **options):
        return compat.kbit_grouped_gemm(
            x, codes, scales, self.table, K_DIM, N, 4, *offsets, **options
        )


@pytest.fixture
def case():
    return Case()


@pytest.fixture
def copies(monkeypatch):
    """How often experts are copied into one tensor, and how often a QTensor is made."""
    counts = {"stacks": 0, "qtensors": 0}
    stack, check = torch.stack, QTensor.__post_init__

    def counted_stack(*arguments, **options):
        counts["stacks"] += 1
        return stack(*arguments, **options)

    def counted_check(q):
        counts["qtensors"] += 1
        check(q)

    monkeypatch.setattr(torch, "stack", counted_stack)
    monkeypatch.setattr(QTensor, "__post_init__", counted_check)
    return counts


FORMS = {
    "list": list,
    "stacked": torch.stack,
    "concatenated": torch.cat,
    "parts of a stack": lambda parts: list(torch.stack(parts)),
}


@pytest.mark.parametrize("scale_form", FORMS)
@pytest.mark.parametrize("code_form", FORMS)
def test_every_form_gives_the_same(case, code_form, scale_form):
    codes, scales = FORMS[code_form](case.codes), FORMS[scale_form](case.scales)
    ys = case.run(case.rows, codes, scales)
    assert [len(y) for y in ys] == SIZES
    torch.testing.assert_close(torch.cat(ys), case.expected)
    for offsets in (case.offsets, case.offsets.long(), case.offsets.tolist()):
        assert torch.equal(case.run(case.x, codes, scales, offsets), torch.cat(ys))


def test_a_stack_is_read_in_place_by_one_qtensor(case, copies):
    codes, scales = torch.stack(case.codes), torch.stack(case.scales)
    copies["stacks"] = 0
    for _ in range(3):
        case.run(case.x, codes, scales, expert_offsets=case.offsets)
    assert copies == {"stacks": 0, "qtensors": 1}


def test_parts_of_a_stack_are_read_in_place(case, copies):
    codes, scales = torch.stack(case.codes), torch.stack(case.scales)
    copies["stacks"] = 0
    for _ in range(3):
        case.run(case.rows, list(codes), list(scales))
    assert copies["stacks"] == 0


def test_experts_that_lie_apart_are_copied_once(case, copies):
    for _ in range(3):
        case.run(case.rows, case.codes, case.scales)
    assert copies == {"stacks": 2, "qtensors": 1}  # codes and scales


def test_a_write_to_one_expert_is_seen(case):
    case.run(case.rows, case.codes, case.scales)
    case.codes[2].copy_(case.codes[0])
    case.scales[2].copy_(case.scales[0])
    ys = case.run(case.rows, case.codes, case.scales)
    expected = compat.kbit_gemm(
        case.rows[2], case.codes[0], case.scales[0], case.table, K_DIM, N, 4
    )
    torch.testing.assert_close(ys[2], expected)


def test_an_expert_is_in_one_copy_at_most(case):
    held = len(kbit_grouped._held)
    for some in ([0, 1, 2], [0, 2], [2, 1], [1, 2, 0]):
        ys = case.run(
            [case.rows[i] for i in some],
            [case.codes[i] for i in some],
            [case.scales[i] for i in some],
        )
        wanted = [case.expected.split(SIZES)[i] for i in some]
        for y, expected in zip(ys, wanted, strict=True):
            torch.testing.assert_close(y, expected)
        assert len(kbit_grouped._held) == held + 1


def test_a_copy_goes_with_the_first_of_its_experts(case):
    held = len(kbit_grouped._held)
    case.run(case.rows, case.codes, case.scales)
    expert = weakref.ref(case.codes[1])
    gc.disable()
    try:
        del case.codes[1]
        assert expert() is None
    finally:
        gc.enable()
    assert len(kbit_grouped._held) == held


def test_experts_are_repacked_together(case):
    made = [compat.quantize_kbit(w, 4) for w in case.weights]
    packed, absmax = torch.stack([p for p, _, _ in made]), torch.stack([a for _, a, _ in made])
    codes, scales = compat.repack_for_gemm(packed, absmax, K_DIM, N, 4)
    assert torch.equal(codes, torch.stack(case.codes))
    assert torch.equal(scales, torch.stack(case.scales))


def test_rows_past_the_last_offset_are_zeros(case):
    y = case.run(case.x, case.codes, case.scales, [0, 2, 2, 4])
    torch.testing.assert_close(y[:4], case.expected[:4])
    assert not y[4:].any()


def refusals(case):
    codes, scales, run = case.codes, case.scales, case.run
    return {
        "got 2 activations and 3 weights": lambda: run(case.rows[:2], codes, scales),
        "got 3 weights and 0 absmax": lambda: run(case.rows, codes, []),
        "got 0 weights": lambda: run([], [], []),
        "are for activations in one tensor": lambda: run(case.rows, codes, scales, case.offsets),
        "need expert_offsets": lambda: run(case.x, codes, scales),
        r"int32 or int64 \[4\]": lambda: run(case.x, codes, scales, case.offsets[:3]),
        "got torch.float32": lambda: run(case.x, codes, scales, case.offsets.float()),
        "must ascend from 0": lambda: run(case.x, codes, scales, [1, 2, 2, 7]),
        r"at most the 7 rows of A, got \[0, 2, 2, 8\]": lambda: run(
            case.x, codes, scales, [0, 2, 2, 8]
        ),
        "the packed weight is": lambda: run(case.x, torch.cat(codes)[1:], scales, case.offsets),
    }


@pytest.mark.parametrize("message", refusals(Case()))
def test_refusals(case, message):
    with pytest.raises(ValueError, match=message):
        refusals(case)[message]()
