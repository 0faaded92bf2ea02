"""Tuning with invented kernels and an invented clock: what is tried, timed and told."""

import json

import pytest
import torch

import blockscale as bs
from blockscale import ops
from blockscale.ops.tuning import contest
from blockscale.ops.tuning import tune as tuning
from blockscale.ops.tuning.candidates import candidates
from blockscale.runtime import gpu, tuned
from ops.tuning.fakes import CPU, Config, Fake, chosen, forget, problem, tune

pytestmark = pytest.mark.usefixtures("folder")


def test_the_fastest_config_runs_from_then_on(clock, install):
    fake = Fake(clock, 4, 8, 2)
    install(fake)
    assert chosen() == (fake, Config(4), "by rule")
    found = tune(clock)
    assert found.gain == pytest.approx(2.0)
    assert found.best.candidate.config == Config(8)
    for _ in range(2):
        assert chosen()[:2] == (fake, Config(8))
        assert chosen().reason == (
            f"tuned on {json.loads(found.path.read_text())['results'][0]['date']}: "
            "2.00x the speed of the rule's choice, fake with speed 4"
        )
        forget()


def test_every_kernel_that_takes_it_is_tried_but_the_definition(clock, install):
    slow, refusing, quick = (
        Fake(clock, *speeds, name=name)
        for name, *speeds in [("slow", 1, 2), ("refusing", 9), ("quick", 3)]
    )
    refusing.refusal = "not here"
    install(slow, refusing, quick)
    found = tune(clock)
    assert [str(trial.candidate) for trial in found.trials] == [
        "slow with speed 1",
        "slow with speed 2",
        "quick with speed 3",
    ]
    assert chosen()[:2] == (quick, Config(3))
    assert not refusing.launched


def test_the_rules_choice_comes_first_whichever_kernel_it_is_of():
    """Of these two products `stream`, which is asked first, takes one."""
    firsts = set()
    for m in (1, 1024):
        asked = ops.example("matmul", bs.NVFP4, gpu("h200"), m=m)
        every = candidates(asked)
        assert every[0] == ops.choose(asked)[:2]
        assert len(every) == len(set(every))
        assert {each.kernel.NAME for each in every} > {every[0].kernel.NAME}
        firsts.add(every[0].kernel.NAME)
    assert firsts == {"stream", "sm90_gemm"}


def test_a_wrong_result_is_left_out_and_never_timed(clock, install):
    fake = Fake(clock, 4, 8, 16, wrong=(16,))
    install(fake)
    found = tune(clock)
    assert found.best.candidate.config == Config(8)
    wrong = found.trials[2]
    assert wrong.seconds is None
    assert "1 of 96 values are wrong: at [1, 47]" in wrong.left_out
    assert fake.launched.count(16) == 1
    assert "left out   fake with speed 16" in str(found)


def test_one_that_fails_is_left_out_with_its_words(clock, install):
    install(Fake(clock, 4, 8, 16, error={16: RuntimeError("too many registers\nand more")}))
    found = tune(clock)
    assert found.trials[2].left_out == "RuntimeError: too many registers"
    assert chosen().config == Config(8)


def test_the_rules_choice_must_work(clock, install):
    install(Fake(clock, 4, 8, error={4: RuntimeError("broken")}))
    with pytest.raises(RuntimeError, match="broken"):
        tune(clock)
    assert not tuned.results()


def test_gains_below_two_percent_keep_the_rules_choice(clock, install):
    install(Fake(clock, 100, 101))
    found = tune(clock)
    assert found.gain == pytest.approx(1.01)
    assert not found.wins
    assert "of 2 ways none is 2% faster" in str(found)
    assert chosen().config == Config(100)
    assert "nothing was 2% faster" in chosen().reason
    assert chosen().reason.startswith("by rule; tuned on ")


def test_one_way_to_do_it_needs_no_search(clock, install, folder):
    install(Fake(clock, 4))
    found = tune(clock)
    assert "fake with speed 4: there is no other way" in str(found)
    assert not clock.rings
    assert found.gain == 1.0
    assert found.path is None
    assert not list(folder.glob("*.json"))


def test_experts_are_met_at_random(clock, install, monkeypatch):
    monkeypatch.setattr(contest, "ring_bytes", lambda device: 100_000)
    fake = Fake(clock, 4, 8)
    install(fake, verb="grouped_gated_matmul")
    ragged = problem(
        verb="grouped_gated_matmul", m=5, groups=64, ragged=True, gated=True, activation="silu"
    )
    assert tune(clock, ragged).wins
    sizes = [tuple(each.tolist()) for _, each in fake.met]
    assert {sum(each) for each in sizes} == {5}
    assert len(set(sizes)) == 6  # five experts at most of 64, and 100 kB is six times theirs
    assert len({address for address, _ in fake.met}) == 1  # in one copy of all


def test_sizes_of_groups_that_are_given_are_timed(clock, install, monkeypatch):
    monkeypatch.setattr(contest, "ring_bytes", lambda device: 100_000)
    fake = Fake(clock, 4, 8)
    install(fake, verb="grouped_matmul")
    ragged = problem(verb="grouped_matmul", m=9, groups=8, ragged=True)
    given = torch.tensor([5, 0, 0, 0, 2, 0, 0, 0])  # two rows of x belong to no group
    assert tune(clock, ragged, group_sizes=given).wins
    met = [(address, tuple(each.tolist())) for address, each in fake.met]
    assert {tuple(sorted(sizes)) for _, sizes in met} == {(0, 0, 0, 0, 0, 0, 2, 5)}
    first, *_ = clock.rings
    copies = len({address for address, _ in met})
    assert len(first) > copies > 1  # two experts of eight are a part of a copy
    assert {sizes for _, sizes in met[:1]} == {tuple(given.tolist())}
    assert len(set(met)) > copies  # later turns meet other experts


def test_weights_go_round_a_ring_that_no_cache_holds(clock, install, monkeypatch):
    monkeypatch.setattr(contest, "ring_bytes", lambda device: 20_000)
    fake = Fake(clock, 4, 8)
    install(fake)
    tune(clock)
    copies = -(-20_000 // (48 * 64 * 9 // 16))
    assert [len(calls) for calls in clock.rings] == [copies, copies]
    assert len({address for address, _ in fake.met}) == copies


def test_weights_are_timed_as_those_that_nobody_writes(clock, install):
    """As layers keep them: other kernels may run for weights that are not frozen."""
    fake = Fake(clock, 1, 2)
    install(fake)
    tune(clock)
    assert fake.frozen == {True}


@pytest.mark.parametrize("x", ["e4m3/32:e8m0@bits/rows", "int8/32:f32@bits/rows", "float16"])
def test_x_of_every_kind(clock, install, x):
    install(Fake(clock, 4, 8))
    assert tune(clock, problem(x=x, w="codebook4/32:e4m4:pow2@planes/rows")).wins


def test_progress_is_told(clock, install):
    install(Fake(clock, 4, 8))
    told = []
    tune(clock, progress=lambda *facts: told.append(facts))
    assert ("warming up", 2, 2) in told
    assert told[-1] == ("timing", 27, 27)


def test_what_cannot_be_tuned_is_told(clock, install):
    for wrong, said in [
        ({"verb": "quantize"}, "quantize has one config"),
        ({"device": gpu("sm_90")}, "cannot be measured on cpu"),
        ({"m": 0}, "there is nothing to compute"),
    ]:
        with pytest.raises(ValueError, match=said):
            tune(clock, problem(**wrong))


def test_no_tuning_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(tuning, "target_of", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
        ops.tune(problem(device=gpu("sm_90")), torch.device("cuda", 0))


def test_what_a_graph_cannot_hold_does_not_take_the_place_of_what_it_can(clock, install):
    holds, does_not = Fake(clock, 4, 5), Fake(clock, 9, name="reads_back")
    does_not.capturable = False
    install(holds, does_not)
    on_gpu = contest.Contest(problem(), torch.device("cuda", 0), lambda *facts: None, clock)
    on_gpu.leave_out_what_no_graph_holds()
    (left,) = [trial for trial in on_gpu._trials({}) if trial.left_out]
    assert left.candidate.kernel is does_not
    assert left.left_out == "a CUDA graph cannot hold it, and can hold the rule's choice"
    assert len(tune(clock).trials) == 3  # a CPU has no graphs
    assert chosen().kernel is does_not


def test_explain_tells(clock, install):
    first, second = Fake(clock, 4), Fake(clock, 8, name="second")
    install(first, second)
    w, x = bs.quantize(torch.randn(48, 64), bs.NVFP4), torch.randn(2, 64).bfloat16()
    assert "chosen   by rule: the first kernel that takes it\n" in str(bs.explain(x, w))
    tune(clock)
    told = bs.explain(x, w)
    assert told.kernel == "second"
    assert "runs     second with speed 8" in str(told)
    assert "chosen   tuned on " in str(told)
    assert "could    fake: takes it too, but was slower when this was tuned" in str(told)
    assert "could    reference: takes it too, but comes later" in str(told)
    assert "; tuned for m = 2\n" in str(bs.explain(x[:1], w))


def test_the_verb_takes_what_explain_takes(clock, install, monkeypatch):
    asked = []
    monkeypatch.setattr(ops, "tune", lambda *args, **options: asked.append((*args, options)))
    gate, up = (bs.quantize(torch.randn(3, 16, 64), bs.MXFP4) for _ in range(2))
    x, sizes = torch.randn(7, 64), torch.tensor([1, 2, 4])
    bs.tune(x, gate, up, group_sizes=sizes, activation="gelu", store=False)
    bs.tune(x, gate[0], x_format=bs.MXFP8, out_dtype=torch.float16)
    assert asked == [
        (bs.explain(x, gate, up, group_sizes=sizes, activation="gelu").problem, CPU,
         {"group_sizes": sizes, "store": False}),
        (bs.explain(x, gate[0], x_format=bs.MXFP8, out_dtype=torch.float16).problem, CPU,
         {"group_sizes": None, "store": True}),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="k=32"):
        bs.tune(torch.randn(7, 32), gate[0])


def test_warming_up_compiles_what_was_tuned(clock, install):
    fake = Fake(clock, 4, 8)
    fake.builds = lambda config: [config]
    install(fake)
    assert ops.builds(problem()) == [Config(4)]
    fake.builds = lambda config: []
    tune(clock)
    fake.builds = lambda config: [config]
    assert ops.builds(problem()) == [Config(8)]


def test_candidates_that_do_not_compile_are_left_out(clock, install, monkeypatch):
    fake = Fake(clock, 4, 8, 16)
    fake.builds = lambda config: [config]
    install(fake)

    def compile_all(missing, target, jobs):
        for each in missing:
            yield each, RuntimeError("does not compile") if each == Config(16) else None

    monkeypatch.setattr(contest, "open_cache", lambda: True)
    monkeypatch.setattr(contest, "is_cached", lambda build, target: build == Config(8))
    monkeypatch.setattr(contest, "compile_all", compile_all)
    told = []
    found = tune(clock, progress=lambda *facts: told.append(facts))
    assert ("compiling", 2, 2) in told  # one was there before
    assert found.trials[2].left_out == "RuntimeError: does not compile"
    assert found.best.candidate.config == Config(8)
