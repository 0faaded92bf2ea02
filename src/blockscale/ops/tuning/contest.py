"""The candidates of one problem against each other: compiled, checked, timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from blockscale.ops.agreement import disagreement
from blockscale.ops.tuning.agreement import tolerance
from blockscale.ops.tuning.candidates import Candidate, candidates
from blockscale.ops.tuning.operands import Entry, Operands, make_operands
from blockscale.ops.tuning.report import Trial
from blockscale.ops.tuning.search import ROUNDS, search
from blockscale.problem import Problem
from blockscale.runtime.cuda import (
    EventStopwatch,
    GraphStopwatch,
    compile_all,
    is_cached,
    open_cache,
)
from blockscale.runtime.timing import Call, CpuStopwatch, Stopwatch, ring_bytes

Clock = Callable[[Sequence[Call]], Stopwatch]  # calls that do the same work -> what times them
Progress = Callable[[str, int, int], object]  # what is done, how much of it, of how much


class Contest:
    """Whoever fails is left out, with the reason; but the rule's choice, whose error is raised."""

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        progress: Progress,
        clock: Clock | None,
        group_sizes: Tensor | None = None,
    ) -> None:
        self._problem, self._device, self._progress = problem, device, progress
        self._group_sizes = group_sizes
        self._every = candidates(problem)
        self._rule = self._every[0]
        self._clock = clock or _clock_of(device, self._rule.is_capturable(problem))
        self._left_out: dict[Candidate, str] = {}

    @property
    def _rest(self) -> list[Candidate]:
        return [each for each in self._every if each not in self._left_out]

    def leave_out_what_no_graph_holds(self) -> None:
        """Whoever can capture a call today can do so when it is tuned."""
        if self._device.type == "cuda" and self._rule.is_capturable(self._problem):
            for each in self._rest:
                if not each.is_capturable(self._problem):
                    reason = "a CUDA graph cannot hold it, and can hold the rule's choice"
                    self._left_out[each] = reason

    def compile(self, jobs: int | None) -> None:
        """Many at a time, where they are kept until they are needed."""
        users = {each: each.builds(self._problem) for each in self._rest}
        target = self._problem.target
        every = dict.fromkeys(build for listed in users.values() for build in listed)
        missing = [each for each in every if open_cache() and not is_cached(each, target)]
        for done, (build, error) in enumerate(compile_all(missing, target, jobs), 1):
            if error is not None:
                for each in users:
                    if build in users[each]:
                        self._fail(each, error)
            self._progress("compiling", done, len(missing))

    def run(self) -> tuple[list[Trial], Trial]:
        if len(self._rest) == 1:
            return self._trials({}), Trial(self._rule, None)
        operands = make_operands(
            self._problem, self._device, ring_bytes(self._device), self._group_sizes
        )
        self._check(operands)
        watches = self._stopwatches(operands)
        if len(self._rest) == 1:
            return self._trials({}), Trial(self._rule, None)
        rounds = iter(range(1, ROUNDS + 1))
        found = search(watches, self._rule, lambda: self._progress("timing", next(rounds), ROUNDS))
        trials = self._trials(found.seconds)
        return trials, next(trial for trial in trials if trial.candidate == found.best)

    def _check(self, operands: Operands) -> None:
        """Only who agrees with the rule's choice is timed."""
        allowed = tolerance(self._problem, operands)
        expected = self._result(self._rule, operands)
        for each in self._rest[1:]:
            wrong = self._difference(each, operands, expected, allowed)
            if wrong is not None:
                self._left_out[each] = wrong

    def _difference(
        self, candidate: Candidate, operands: Operands, expected: Tensor, allowed: Tensor
    ) -> str | None:
        try:
            result = self._result(candidate, operands)
        except RuntimeError as error:
            return _first_line(error)
        return disagreement(self._problem, result, expected, allowed)

    def _result(self, candidate: Candidate, operands: Operands) -> Tensor:
        out = self._out(float("nan"))
        self._call(candidate, operands, operands.ring[0], out)()
        return out

    def _stopwatches(self, operands: Operands) -> dict[Candidate, Stopwatch]:
        watches, out, every = {}, self._out(0.0), self._rest
        for done, each in enumerate(every, 1):
            try:
                calls = [self._call(each, operands, entry, out) for entry in operands.ring]
                watches[each] = self._clock(calls)
            except RuntimeError as error:
                self._fail(each, error)
            self._progress("warming up", done, len(every))
        return watches

    def _call(self, candidate: Candidate, operands: Operands, entry: Entry, out: Tensor) -> Call:
        """As a call on kept weights is launched."""
        kernel, config = candidate
        biases = (None,) * len(operands.matrices)
        launch = kernel.bind(self._problem, config, entry.weights, frozen=True)
        return partial(launch, operands.rows, biases, entry.group_sizes, out)

    def _out(self, value: float) -> Tensor:
        shape, dtype = (self._problem.rows, self._problem.n), self._problem.out_dtype
        return torch.full(shape, value, dtype=dtype, device=self._device)

    def _fail(self, candidate: Candidate, error: Exception) -> None:
        if candidate == self._rule:
            raise error
        self._left_out[candidate] = _first_line(error)

    def _trials(self, seconds: dict[Candidate, float]) -> list[Trial]:
        return [
            Trial(each, seconds.get(each), self._left_out.get(each, "")) for each in self._every
        ]


def _clock_of(device: torch.device, is_capturable: bool) -> Clock:
    if device.type != "cuda":
        return CpuStopwatch
    return GraphStopwatch if is_capturable else EventStopwatch


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
