"""Kernels prove themselves: each wrong one is caught, the next one serves, and the reason is told.

Without a GPU: kernels are planted that compute on the CPU for a GPU that is not there."""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import blockscale as bs
import ops.planted as planted
from blockscale import ops
from blockscale.formats import CATALOGUE
from blockscale.kernels import KERNELS
from blockscale.layouts import canonical
from blockscale.ops.proof import apart, record, standing, subject
from blockscale.ops.proof.check import cases, find_failure
from blockscale.problem import Kind, Problem
from blockscale.runtime import device_of, gpu, proven, result_folder
from ops.planted import FAKE, Planted

CPU = torch.device("cpu")
PLANTED_SERVER = (sys.executable, str(Path(__file__).with_name("proof_server.py")))


def problem(verb="matmul", format=bs.NVFP4, **changes):
    grouped, gated = verb.startswith("grouped"), "gated" in verb
    facts = {"verb": verb, "m": 16, "n": 96, "k": 128, "x": "bfloat16", "out": "bfloat16",
             "w": str(Kind(format, canonical(format))), "groups": 4 if grouped else 1,
             "ragged": grouped, "gated": gated, "activation": "silu" if gated else "",
             "device": FAKE, **changes}  # fmt: skip
    return Problem(**facts)


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A folder of its own; the fake GPU is the CPU; no process can be started."""
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(standing, "locate", lambda device: CPU if device == FAKE else None)
    monkeypatch.setattr(apart, "COMMAND", (str(tmp_path / "no-such-program"),))
    monkeypatch.setattr(subject, "_ROWS", (1, 7))  # the definition takes its time
    monkeypatch.setattr(subject, "_ROWS_OF_LARGER", ())
    forget()
    yield tmp_path / "cache" / "proven"
    forget()


def forget():
    standing.forget()
    ops.choose.cache_clear()
    result_folder.warn_once.cache_clear()


def plant(monkeypatch, verb, *kernels):
    monkeypatch.setitem(KERNELS, verb, (*kernels, KERNELS[verb][-1]))
    ops.choose.cache_clear()


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        *(("matmul", name) for name in ("nvfp4", "mxfp4", "mxfp8", "mxfp6_e3m2", "kbit3")),
        ("gated_matmul", "nvfp4"),
        ("grouped_matmul", "mxfp4"),
        ("grouped_gated_matmul", "kbit4"),
        ("input_grad", "nvfp4"),
        ("input_grad", "kbit2"),
    ],
)
def test_the_definition_passes(verb, name):
    assert find_failure(Planted("right"), problem(verb, CATALOGUE[name]), None, CPU) is None


@pytest.mark.parametrize("promise", [True, False])
def test_weights_are_proven_frozen_and_not(promise):
    class WrongForOne(Planted):
        def bind(self, problem, config, weights=(), frozen=False):
            one = Planted("", planted.last_value if frozen is promise else None)
            return one.bind(problem, config, weights)

    told = find_failure(WrongForOne("wrong"), problem(), None, CPU)
    assert "values are wrong" in told
    assert ("frozen weights" in told) is promise


def test_the_definition_passes_with_quantised_x():
    for format in (bs.NVFP4, bs.MXFP8):
        asked = problem(format=format, x=str(Kind(format, canonical(format))))
        assert find_failure(Planted("right"), asked, None, CPU) is None


@pytest.mark.parametrize(
    ("damage", "verb", "found"),
    [
        (planted.last_value, "matmul", "1 of 200 values are wrong"),
        (planted.unwritten_row, "matmul", "nan where the definition has exactly"),
        (planted.no_tensor_scale, "matmul", "lossless operands"),
        (planted.neighbours_scales, "matmul", "lossless operands"),
        (planted.swapped_nibbles, "matmul", "lossless operands"),
        (planted.without_last_block, "matmul", "lossless operands"),
        (planted.without_bias, "matmul", "m=7 n=200"),
        (planted.narrow_sums, "matmul", "values are wrong"),
        (planted.odd_rows_only, "matmul", "m=1 n=200"),
        (planted.fails, "matmul", "RuntimeError: cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE"),
        (planted.other_experts, "grouped_matmul", "experts=4"),
        (planted.swapped_branches, "gated_matmul", "values are wrong"),
        (planted.swapped_branches, "grouped_gated_matmul", "values are wrong"),
        (planted.last_value, "input_grad", "values are wrong"),
        (planted.last_value, "dequantize", "values of output 0 are wrong"),
        (planted.last_value, "tensor_scale", "values of output 0 are wrong"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_kernel_is_caught_and_the_next_one_serves(monkeypatch, damage, verb, found):
    wrong, right = Planted("wrong", damage), Planted("right")
    plant(monkeypatch, verb, wrong, right)
    rule = {"rule": "row", "n": 0, "out": "float32"} if verb == "tensor_scale" else {}
    asked = problem(verb, **({"n": 0} if verb == "dequantize" else rule))
    with pytest.warns(
        RuntimeWarning, match="wrong is not used for .*: it failed its proof"
    ) as told:
        choice = ops.choose(asked)
    assert choice.kernel is right
    assert len(told) == 1
    assert found in str(told[0].message)
    assert found in str(ops.explain(asked, None))
    assert "proven   on this GPU" in str(ops.explain(asked, None))


def quantize_problem(format, **changes):
    return problem("quantize", format, n=0, rule="absmax", out="uint8", **changes)


@pytest.mark.parametrize("changes", [{}, {"derives": True}, {"rule": "mse", "weighted": True}])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "kbit4"])
def test_quantisation_is_proven_to_the_bit(name, changes):
    def one_code(problem, weights, tensors, run):
        run(weights, tensors)
        tensors[3].view(-1)[-1] ^= 1

    def one_tensor_scale(problem, weights, tensors, run):
        run(weights, tensors)
        tensors[1].view(-1)[-1] *= 2

    asked = replace(quantize_problem(CATALOGUE[name]), **changes)
    assert find_failure(Planted("right"), asked, None, CPU) is None
    assert "1 of" in find_failure(Planted("wrong", one_code), asked, None, CPU)
    if changes.get("derives") and CATALOGUE[name].has_tensor_scale:
        assert "output 0" in find_failure(Planted("wrong", one_tensor_scale), asked, None, CPU)


def test_repacking_is_proven_to_the_bit():
    def one_byte(problem, weights, tensors, run):
        codes, scale = run(weights, tensors)
        return codes, scale.roll(1, -1)

    asked = problem("repack", n=0, x=str(Kind(bs.NVFP4, canonical(bs.NVFP4))), out="uint8")
    asked = replace(asked, w=asked.x.replace("rows", "blocked"))
    assert find_failure(Planted("right"), asked, None, CPU) is None
    assert "output 1" in find_failure(Planted("wrong", one_byte), asked, None, CPU)


def test_a_verb_runs_on_what_has_proven_itself(monkeypatch):
    wrong, right = Planted("wrong", planted.without_last_block), Planted("right")
    plant(monkeypatch, "matmul", wrong, right)
    monkeypatch.setattr(sys.modules["blockscale.ops.matmul"], "device_of", lambda device: FAKE)
    q, x = bs.quantize(torch.randn(96, 128), bs.NVFP4), torch.randn(3, 128).bfloat16()
    with pytest.warns(RuntimeWarning, match="wrong is not used"):
        y = bs.matmul(x, q)
    launches = wrong.launches
    assert torch.equal(y, bs.matmul(x, q))
    assert wrong.launches == launches
    monkeypatch.undo()
    assert torch.equal(y, bs.matmul(x, q))


def test_a_proof_is_made_once_and_found_by_later_processes(monkeypatch, machine):
    right = Planted("right")
    plant(monkeypatch, "matmul", right)
    for m in (1, 16, 200):
        ops.choose(problem(m=m, n=64, bias=m > 1))
    made = right.launches
    assert made
    forget()
    assert ops.choose(problem(m=5)).kernel is right
    assert right.launches == made
    (kept,) = proven.proofs().values()
    assert (kept.kernel, kept.failure, kept.subject["verb"]) == ("right", "", "matmul")
    (path,) = machine.glob("*.json")
    assert json.loads(path.read_text())["target"] == "sm_100"


@pytest.mark.parametrize("changed", ["sources", "driver", "gpu"])
def test_a_proof_holds_for_one_gpu_driver_and_state_of_the_sources(monkeypatch, changed):
    right = Planted("right")
    plant(monkeypatch, "matmul", right)
    ops.choose(problem())
    made = right.launches
    forget()
    if changed == "sources":
        monkeypatch.setattr(standing, "source_hash", lambda target: "other")
    elif changed == "driver":
        monkeypatch.setattr(standing, "driver_version", lambda: "99.9")
    else:
        monkeypatch.setattr(standing, "describe_device", lambda device: "another one")
    ops.choose(problem())
    assert right.launches == 2 * made


def test_a_failure_is_kept_and_told_in_every_process(monkeypatch):
    wrong = Planted("wrong", planted.last_value)
    plant(monkeypatch, "matmul", wrong)
    with pytest.warns(RuntimeWarning, match="wrong is not used"):
        ops.choose(problem())
    made = wrong.launches
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.choose(problem(m=17))  # told once
    forget()
    with pytest.warns(RuntimeWarning, match="wrong is not used"):
        ops.choose(problem())
    assert wrong.launches == made


@pytest.mark.fault(
    "a kernel gives wrong results on a kind of GPU that it was never tested on",
    outcome="its proof fails, a warning gives the reason, and the next kernel serves",
)
def test_where_every_kernel_fails_the_definition_serves(monkeypatch):
    plant(monkeypatch, "matmul", Planted("one", planted.fails), Planted("two", planted.last_value))
    with pytest.warns(RuntimeWarning, match="is not used") as told:
        assert ops.choose(problem()).kernel.NAME == "reference"
    assert len(told) == 2


@pytest.mark.fault(
    "there is no memory for a proof, in this process or in its own",
    outcome="a warning says so and the next kernel serves; nothing is kept, and later processes "
    "try again",
)
@pytest.mark.parametrize("apart_from_here", [False, True])
def test_a_proof_that_finds_no_memory_is_not_kept(monkeypatch, apart_from_here):
    plant(monkeypatch, "matmul", Planted("greedy", planted.greedy))
    if apart_from_here:
        monkeypatch.setattr(apart, "COMMAND", PLANTED_SERVER)
    told = "there was no memory for it: tried to allocate 2 GiB$"
    with pytest.warns(RuntimeWarning, match=told):
        assert ops.choose(problem()).kernel.NAME == "reference"
    assert not proven.proofs()


def test_a_folder_that_cannot_be_written_costs_a_proof_in_each_process(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "file" / "cache"))
    right = Planted("right")
    plant(monkeypatch, "matmul", right)
    with pytest.warns(RuntimeWarning, match="right will be proven again in each process"):
        assert ops.choose(problem()).kernel is right
    made = right.launches
    assert ops.choose(problem(m=3)).kernel is right
    assert right.launches == made


def test_nothing_is_proven_while_a_graph_is_captured(monkeypatch):
    right = Planted("right")
    plant(monkeypatch, "matmul", right)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="make such a call once before the capture"):
        ops.choose(problem())
    assert not right.launches
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert ops.choose(problem()).kernel is right
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert ops.choose(problem(m=2)).kernel is right  # proven


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_PROVE", "0")
    wrong = Planted("wrong", planted.last_value)
    plant(monkeypatch, "matmul", wrong)
    assert ops.choose(problem()).kernel is wrong
    assert not wrong.launches


def test_modes_of_the_caller_do_not_reach_a_proof(monkeypatch):
    plant(monkeypatch, "matmul", Planted("right"))
    with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        before = torch.random.get_rng_state()
        assert ops.choose(problem()).kernel.NAME == "right"
    assert torch.equal(before, torch.random.get_rng_state())


def test_tuning_leaves_out_what_fails(monkeypatch):
    from blockscale.ops.tuning.candidates import candidates

    plant(monkeypatch, "matmul", Planted("wrong", planted.last_value), Planted("right"))
    assert {each.kernel.NAME for each in candidates(problem())} == {"right"}


def test_cpus_and_references_need_no_proof():
    for verb, kernels in KERNELS.items():
        asked = replace(problem(), verb=verb, device=device_of(CPU))
        assert {standing.standing(asked, each).state for each in kernels} == {"needs no proof"}
        assert standing.standing(replace(asked, device=FAKE), kernels[-1]).state == "needs no proof"


def test_the_record_names_kernels_that_there_are():
    for arch, tested in record.record().items():
        assert gpu(arch).arch == arch
        for verb, names in tested.kernels.items():
            assert set(names) <= {kernel.NAME for kernel in KERNELS[verb]}, (arch, verb)


@pytest.mark.parametrize(
    "arch", ["sm_80", "sm_86", "sm_89", "sm_100", "sm_103", "sm_120", "sm_121"]
)
def test_what_was_never_run_starts_unproven(arch):
    asked = ops.example("matmul", bs.NVFP4, gpu(arch))
    states = {each.kernel: each.standing.state for each in ops.answers(asked)}
    assert states["stream"] == states["cublas"] == "unproven"
    assert "unproven no test has run it on" in str(ops.explain(asked))


def test_hopper_is_proven_by_the_tests():
    told = str(ops.explain(ops.example("matmul", bs.NVFP4, gpu("h200"))))
    assert "proven   by the tests of this library on NVIDIA H200" in told


def test_small_problems_keep_the_subject_and_meet_odd_sizes():
    for verb in KERNELS:
        asked = problem(verb, n=0 if verb in ("quantize", "dequantize", "repack") else 96)
        if verb == "repack":
            asked = replace(asked, x=asked.w)
        small = subject.small_problems(Planted("right"), asked)
        assert all(subject.subject(each) == subject.subject(asked) for each in small)
        assert any(each.m % 8 for each in small)
        assert all(list(cases(each)) for each in small[:1])


def test_a_kernel_for_many_rows_meets_many_rows(monkeypatch):
    tall = Planted("tall", takes=lambda problem: problem.m > 32 and problem.n % 128 == 0)
    monkeypatch.setattr(subject, "_ROWS", (1, 7, 40))
    small = subject.small_problems(tall, problem())
    assert {each.m for each in small} == {40}
    assert {each.n for each in small} == {256}
    assert find_failure(tall, problem(), None, CPU) is None
    none = Planted("none", takes=lambda problem: False)
    assert "takes none" in find_failure(none, problem(), None, CPU)


def test_a_process_of_its_own_survives_what_hangs_and_what_crashes(monkeypatch):
    """It proves the next kernel after each, in a new process."""
    monkeypatch.setattr(apart, "COMMAND", PLANTED_SERVER)
    with apart.Prover(CPU) as prover:
        assert prover.find_failure(Planted("right"), problem(), None) is None
        with monkeypatch.context() as impatient:
            impatient.setattr(apart, "_RUN_SECONDS", 1)
            said = prover.find_failure(Planted("hangs"), problem(), None)
        assert said == "its process gave no answer for 1 s: it hangs"
        said = prover.find_failure(Planted("crashes"), problem(), None)
        assert said.startswith("its process ended with status")
        with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"):
            prover.find_failure(Planted("greedy"), problem(), None)
        assert prover.find_failure(Planted("right"), problem(), None) is None
