import dataclasses
import itertools

import pytest
import torch

import blockscale as bs
from blockscale.kernels import KERNELS, FunctionLaunch
from blockscale.ops import VERBS, answers, choose, example, explain, prepared_layout, x_layout
from blockscale.problem import Kind, Problem
from blockscale.runtime import device_of, gpu


def problem(**changes):
    facts = {"verb": "matmul", "m": 4, "n": 256, "k": 512, "x": "bfloat16",
             "w": "e2m1/16:ue4m3:amax@bits/rows", "out": "bfloat16",
             "device": device_of(torch.device("cpu")), **changes}  # fmt: skip
    return Problem(**facts)


def test_bytes_and_flops():
    p = problem()
    assert p.bytes == 4 * 512 * 2 + 4 * 256 * 2 + 256 * 512 * 4.5 / 8
    assert p.flops == 2 * 4 * 256 * 512
    assert p.intensity == p.flops / p.bytes


def test_gated_reads_two_weights():
    assert problem(gated=True).flops == 2 * problem().flops
    assert problem(gated=True).bytes - problem().bytes == 256 * 512 * 4.5 / 8


def test_ragged_reads_at_most_one_expert_per_row():
    few = problem(verb="grouped_matmul", ragged=True, groups=64)
    assert few.rows == 4
    assert few.weights_read == 4
    assert problem(ragged=True, groups=2).weights_read == 2
    assert problem(groups=3).rows == 12
    assert problem(groups=3).weights_read == 3


def test_experts_that_have_rows_are_read_once():
    """Of 64 experts 4 rows, at random, meet 3.9."""
    few = problem(verb="grouped_matmul", ragged=True, groups=64)
    read = 64 * (1 - (63 / 64) ** 4) * 256 * 512 * 4.5 / 8
    assert few.bytes == round(4 * 512 * 2 + 4 * 256 * 2 + read)
    gated = problem(verb="grouped_gated_matmul", ragged=True, groups=64, gated=True)
    assert gated.bytes - few.bytes == pytest.approx(read, abs=1)


def test_quantized_x_is_smaller():
    assert problem(x="e4m3/32:e8m0@bits/rows").bytes < problem().bytes


def test_quantize_moves_bytes_and_multiplies_nothing():
    p = problem(verb="quantize", n=0)
    assert (p.bytes, p.flops) == (4 * 512 * (16 + 4.5) / 8, 0)


def test_a_gradient_reads_n_columns_and_writes_k():
    forward, backward = problem(out="float32"), problem(verb="input_grad", out="float32")
    assert forward.bytes - backward.bytes == 4 * (512 * 2 + 256 * 4) - 4 * (256 * 2 + 512 * 4)


def test_problems_are_hashable_and_printable():
    assert len({problem(), problem(), problem(m=5)}) == 2
    assert str(problem(groups=8, ragged=True)) == (
        "matmul m=4 n=256 k=512 experts=8, x bfloat16, w e2m1/16:ue4m3:amax@bits/rows, "
        "out bfloat16, on cpu"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_with_the_reference(verb):
    last = KERNELS[verb][-1]
    assert last.NAME == "reference"
    assert last.refuses(problem(verb=verb)) is None


def test_explain_names_the_kernel_and_the_floor():
    w, x = bs.quantize(torch.randn(64, 128), bs.NVFP4), torch.randn(3, 128)
    told = bs.explain(x, w)
    assert told.kernel in {kernel.NAME for kernel in KERNELS["matmul"]}
    assert told.problem.m == 3
    assert told.floor_seconds == max(told.bytes_seconds, told.flops_seconds) > 0
    text = str(told)
    for word in ("matmul m=3 n=64 k=128", "flop/byte", "measured here", "runs", "bits/rows"):
        assert word in text


def test_explain_knows_every_verb():
    gate, up = (bs.quantize(torch.randn(4, 16, 64), bs.MXFP4) for _ in range(2))
    x, sizes = torch.randn(7, 64), torch.tensor([1, 2, 3, 1])
    assert bs.explain(x, gate, group_sizes=sizes).problem.verb == "grouped_matmul"
    assert bs.explain(x, gate, up, group_sizes=sizes).problem.verb == "grouped_gated_matmul"
    assert bs.explain(x, gate[0], up[0]).problem.activation == "silu"
    assert bs.explain(x, gate[0], x_format=bs.MXFP8).problem.x == "e4m3/32:e8m0@bits/rows"
    assert bs.explain(torch.randn(4, 2, 64), gate).problem.groups == 4


NVFP4, MXFP4, MXFP8 = (f"{format.spec}@bits/blocked" for format in (bs.NVFP4, bs.MXFP4, bs.MXFP8))


@pytest.mark.parametrize(
    ("name", "x", "w", "gain"),
    [
        ("b200", NVFP4, NVFP4, 4),
        ("b200", MXFP4, MXFP8, 2),
        ("b200", NVFP4, MXFP8, 1),  # of which no instruction takes both
        ("b200", "bfloat16", NVFP4, 1),
        ("b300", NVFP4, NVFP4, 6),
        ("b300", MXFP8, MXFP8, 2),
        ("rtx5090", NVFP4, NVFP4, 8),
        ("rtx5090", MXFP8, MXFP4, 4),
        ("h200", NVFP4, NVFP4, 1),
    ],
)
def test_floors_count_with_the_rate_of_block_scales(name, x, w, gain):
    device = gpu(name)
    found = explain(problem(m=4096, n=4096, k=4096, x=x, w=w, device=device))
    of_16_bits = device.sms * device.sm_hz * device.mma_flops_per_cycle
    assert found.ceilings.flops_per_s == gain * of_16_bits
    assert ("by block scales" in str(found)) == (gain > 1)


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "rtx5090"])
@pytest.mark.parametrize("coded", [None, bs.NVFP4, bs.MXFP8], ids=str)
@pytest.mark.parametrize("experts", [1, 128, 256])
def test_no_prediction_is_below_the_floor(name, coded, experts):
    """Of the rows that the rule gives to a kernel which predicts its time."""
    device, checked = gpu(name), 0
    for format, m in itertools.product((bs.NVFP4, bs.MXFP8, bs.KBIT4), (1, 64, 200, 4096)):
        verb = "matmul" if experts == 1 else "grouped_matmul"
        w = Kind(format, prepared_layout(format, device, coded))
        x = str(Kind(coded, x_layout(coded, w, device))) if coded else "bfloat16"
        found = explain(
            problem(verb=verb, m=m, n=14336, k=4096, groups=experts, ragged=experts > 1,
                    x=x, w=str(w), device=device)
        )  # fmt: skip
        kernel, config, _ = found.choice
        predicted = kernel.bind(found.problem, config).predicted
        if predicted is not None:
            floor = (1 - 1e-9) * 1e6 * found.floor_seconds
            assert predicted.microseconds >= floor, (format, m)
            checked += 1
    assert checked >= 4


class Rival:
    NAME = "rival"

    def __init__(self, refusal):
        self.refusal = refusal

    def refuses(self, problem):
        return self.refusal

    def configs(self, problem):
        return ["best", "second"]

    def reads(self, format, device):
        return None

    def bind(self, problem, config, weights=(), frozen=False):
        return FunctionLaunch(lambda *tensors: tensors[-1].fill_(42))


@pytest.fixture
def rivals(monkeypatch):
    def install(*kernels):
        monkeypatch.setitem(KERNELS, "matmul", (*kernels, *KERNELS["matmul"]))
        choose.cache_clear()

    yield install
    choose.cache_clear()


def test_the_first_kernel_that_does_not_refuse_runs(rivals):
    rivals(Rival("needs sm_90, this is cpu"), Rival(None))
    w, x = bs.quantize(torch.randn(8, 64), bs.NVFP4), torch.randn(3, 64)
    assert bs.matmul(x, w).eq(42).all()
    told = bs.explain(x, w)
    assert [answer.refusal for answer in told.answers][:2] == ["needs sm_90, this is cpu", None]
    assert "not      rival: needs sm_90, this is cpu" in str(told)
    assert "runs     rival with best" in str(told)
    assert "could    reference" in str(told)


def test_a_verb_without_a_taker_is_an_error(monkeypatch):
    monkeypatch.setitem(KERNELS, "matmul", (Rival("no"),))
    choose.cache_clear()
    with pytest.raises(RuntimeError, match="no kernel takes matmul"):
        choose(problem(m=99))
    choose.cache_clear()
    assert answers(problem(m=99))[0].refusal == "no"


def test_unprepared_weights_are_pointed_out():
    w = bs.quantize(torch.randn(128, 64), bs.NVFP4)
    assert "w.prepare() once" in str(bs.explain(torch.randn(1, 64), w.pack("blocked")))
    assert dataclasses.is_dataclass(bs.explain(torch.randn(1, 64), w))


@pytest.mark.parametrize("m", [1, 16, 4096])
def test_codebooks_are_said_to_be_where_they_are_looked_up(m):
    """Of 5 bits in shared memory where they are known to be symmetric, and in registers else."""
    asked = example("matmul", bs.KBIT5, gpu("h200"), m=m)
    known, any_table = explain(asked), explain(asked, symmetric=False)
    assert "table in shared memory" in str(known)
    (runs,) = (line for line in str(any_table).splitlines() if line.startswith("  runs"))
    assert "table in shared memory" not in runs


@pytest.mark.parametrize("format", [bs.KBIT5, bs.NVFP4], ids=str)
def test_what_is_known_of_codebooks_is_what_was_promised(format):
    x, w = torch.ones(1, 64), bs.quantize(torch.randn(32, 64), format)
    assert bs.explain(x, w).symmetric == (format == bs.NVFP4)
    assert bs.explain(x, w.freeze()).symmetric
    if w.codebook is not None:
        w.codebook[0] = -2.0
        assert not bs.explain(x, w.freeze()).symmetric
