"""What a search has found, for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blockscale.ops.tuning.candidates import Candidate
from blockscale.problem import Problem
from blockscale.runtime.tuned import LEAST_GAIN


@dataclass(frozen=True)
class Trial:
    """One candidate: its median time, or why it has none."""

    candidate: Candidate
    seconds: float | None
    left_out: str = ""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"left out   {self.candidate}: {self.left_out}"
        return f"{_us(self.seconds):>10} {self.candidate}"


@dataclass(frozen=True)
class Tuning:
    problem: Problem
    device: str
    trials: list[Trial]  # the rule's choice first
    best: Trial
    path: Path | None  # where the result is kept

    @property
    def rule(self) -> Trial:
        return self.trials[0]

    @property
    def gain(self) -> float:
        """How many times faster than the rule's choice; 1 where nothing was timed."""
        if self.rule.seconds is None or self.best.seconds is None:
            return 1.0
        return self.rule.seconds / self.best.seconds

    @property
    def wins(self) -> bool:
        """Whether the best takes the place of the rule's choice."""
        return self.gain >= LEAST_GAIN

    @property
    def verdict(self) -> str:
        rule, best = self.rule, self.best
        if rule.seconds is None or best.seconds is None:
            rivals = "no other way" if len(self.trials) == 1 else "no other way that works"
            return f"{rule.candidate}: there is {rivals}"
        if self.wins:
            times = f"{_us(rule.seconds)} by rule, {_us(best.seconds)} at best"
            return f"{times}, {self.gain:.2f}x: {best.candidate}"
        count = sum(trial.seconds is not None for trial in self.trials)
        little = f"of {count} ways none is {LEAST_GAIN - 1:.0%} faster"
        return f"{_us(rule.seconds)} by rule, {little}: {rule.candidate}"

    def __str__(self) -> str:
        timed = [trial for trial in self.trials if trial.seconds is not None]
        lines = [f"{self.problem}, {self.device}", f"  {self.verdict}"]
        for trial in sorted(timed, key=lambda trial: trial.seconds or 0):
            note = " (the rule's choice)" if trial is self.rule else ""
            lines.append(f"  {trial}{note}")
        lines += [f"  {trial}" for trial in self.trials if trial.left_out]
        if self.path is not None:
            lines.append(f"  kept in {self.path}")
        return "\n".join(lines)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.2f} us"
