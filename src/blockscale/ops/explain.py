"""Why a call runs as it does: every kernel's answer, and the least the work can cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockscale.formats import INT8
from blockscale.kernels import KERNELS, Config, Prediction
from blockscale.kernels.matmul.block_scaled.operands import operands_of
from blockscale.layouts import ScaledMemory
from blockscale.ops.choose import Answer, answers, choose
from blockscale.ops.prepared import prepared_layout
from blockscale.ops.rule import BY_RULE, Choice
from blockscale.ops.tuning.stored import other_rows
from blockscale.problem import Problem, dtype_named
from blockscale.runtime import Ceilings, ceilings, published_ceilings


@dataclass(frozen=True)
class Explanation:
    problem: Problem
    answers: list[Answer]
    ceilings: Ceilings
    choice: Choice
    copied: str | None = None  # why the weights are copied at every call
    symmetric: bool = True  # codebooks, if any, are known to be

    @property
    def kernel(self) -> str:
        """The name of the kernel that runs."""
        return self.choice.kernel.NAME

    @property
    def config(self) -> Config:
        """Of what runs, which codebooks have a say in."""
        kernel, config, _ = self.choice
        return kernel.bind(self.problem, config).config_for(self.symmetric) or config

    @property
    def bytes_seconds(self) -> float:
        return self.problem.bytes / self.ceilings.read_bytes_per_s

    @property
    def flops_seconds(self) -> float:
        return self.problem.flops / self.ceilings.flops_per_s

    @property
    def floor_seconds(self) -> float:
        """No kernel is faster than its bytes at the read ceiling or its flops at the product's."""
        return max(self.bytes_seconds, self.flops_seconds)

    def __str__(self) -> str:
        problem, limit = self.problem, self.ceilings
        bound = "bytes" if self.bytes_seconds >= self.flops_seconds else "flops"
        moved, worked = _si(problem.bytes, "B"), _si(problem.flops, "flop")
        by_bytes = f"{_si(self.bytes_seconds, 's')} at {_si(limit.read_bytes_per_s, 'B/s')}"
        by_flops = f"{_si(self.flops_seconds, 's')} at {_si(limit.flops_per_s, 'flop/s')}"
        floor = f"{_si(self.floor_seconds, 's')}, set by {bound}"
        lines = [
            str(problem),
            f"  work     {moved}, {worked}, {problem.intensity:.3g} flop/byte",
            f"  floor    {floor}: {by_bytes}, {by_flops} ({limit.source})",
            f"  weights  {self._weights()}",
        ]
        passed = False
        for answer in self.answers:
            if answer.refusal is not None:
                lines.append(f"  not      {answer.kernel}: {answer.refusal}")
            elif answer.kernel == self.kernel:
                lines.append(f"  runs     {answer.kernel} with {self.config}")
                lines.append(f"  chosen   {self._reason()}")
                if answer.standing.state != "needs no proof":
                    lines.append(f"  {answer.standing.state:8s} {answer.standing.said}")
                lines += self._predicted()
                passed = True
            else:
                lines.append(
                    f"  could    {answer.kernel}: takes it too, but {self._why(answer, passed)}"
                )
        return "\n".join(lines)

    def _why(self, answer: Answer, passed: bool) -> str:
        """Why a kernel that could does not run."""
        kernel = next(each for each in KERNELS[self.problem.verb] if answer.kernel == each.NAME)
        expected = kernel.bind(self.problem, answer.config).predicted
        if self.choice.reason.startswith(BY_RULE) and expected is not None:
            return f"expects {expected}, with {answer.config}"
        return "comes later" if passed else "was slower when this was tuned"

    def _reason(self) -> str:
        """With the other m that have been tuned, since a result holds for its own m alone."""
        reason = self.choice.reason
        if reason != BY_RULE:
            return reason
        others = other_rows(self.problem)
        if self._expected is None:
            reason += ": the first kernel that takes it"
        else:
            how = "was measured" if self._expected.measured else "is predicted"
            reason += f": its config {how} to be the fastest"
        return f"{reason}; tuned for m = {', '.join(map(str, others))}" if others else reason

    @property
    def _expected(self) -> Prediction | None:
        kernel, config, _ = self.choice
        return kernel.bind(self.problem, config).predicted

    def _predicted(self) -> list[str]:
        """By kernels that have a model of themselves: of what runs, and of the next config."""
        kernel, config, _ = self.choice
        if self._expected is None:
            return []
        lines = [f"  expects  {self._expected}"]
        tensor_memory = kernel.bind(self.problem, config).tensor_memory
        if tensor_memory is not None:
            lines.append(f"  TMEM     {tensor_memory}")
        for other in kernel.configs(self.problem):
            second = kernel.bind(self.problem, other).predicted if other != config else None
            if second is not None:
                return [*lines, f"  next     {second}, with {other}"]
        return lines

    def _weights(self) -> str:
        format, layout = self.problem.w_kind
        x = self.problem.x_kind.format if "@" in self.problem.x else None
        wanted = prepared_layout(format, self.problem.device, x)
        how = "w.prepare()" if wanted.scales != "blocked" else "w.prepare(x_format=...)"
        if self.copied:
            return f"in {layout}, copied at every call: {self.copied}; q.clone() once mends that"
        if layout == wanted:
            return f"in {layout}, the layout this target's kernels read"
        return f"in {layout}; this target's kernels read {wanted}: {how} once"


def tensor_memory(problem: Problem) -> ScaledMemory:
    """How the first kernel that takes the problem and has block scales in TMEM divides it."""
    for kernel in KERNELS[problem.verb]:
        if kernel.refuses(problem) is None:
            found = kernel.bind(problem, kernel.configs(problem)[0]).tensor_memory
            if isinstance(found, ScaledMemory):
                return found
    reasons = "; ".join(
        f"{each.kernel}: {each.refusal}" for each in answers(problem) if each.refusal
    )
    raise ValueError(f"no kernel multiplies {problem} in TMEM: {reasons}")


def explain(
    problem: Problem,
    device: torch.device | None = None,
    copied: str | None = None,
    *,
    symmetric: bool = True,
) -> Explanation:
    """device: where floors are measured; None for one that is not here, whose data sheet counts."""
    if device is None:
        limits = published_ceilings(problem.device)
    else:
        limits = ceilings(device, *_multiplied(problem))
    gain = _block_scaled_gain(problem)
    if gain > 1:
        source = f"{limits.source}, {gain} times 16-bit products by block scales"
        limits = limits._replace(flops_per_s=gain * limits.flops_per_s, source=source)
    return Explanation(problem, answers(problem), limits, choose(problem), copied, symmetric)


def _multiplied(problem: Problem) -> tuple[torch.dtype, ...]:
    """What kernels may multiply in: x's dtype, whatever the result's is, and bfloat16 where x is
    quantised; int8 where x is: dot products of bytes are then another way to multiply."""
    quantized = "@" in problem.x
    x = torch.bfloat16 if quantized else dtype_named(problem.x)
    integers = (torch.int8,) if quantized and problem.x_kind.format == INT8 else ()
    return (x, *integers)


def _block_scaled_gain(problem: Problem) -> int:
    """How many times 16-bit products a device multiplies both operands as they are."""
    if not problem.device.block_scaled or "@" not in problem.x:
        return 1
    found = operands_of(problem.x_kind.format, problem.w_kind.format)
    if isinstance(found, str):
        return 1
    gain = found.rate * problem.device.block_scaled_gain
    # An instruction of sm_103 may take 96 packed elements of k, where one of sm_100 takes 64.
    return gain * 3 // 2 if found.is_packed and problem.device.capability == (10, 3) else gain


def _si(value: float, unit: str) -> str:
    """Three digits with a decimal prefix."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    for factor, prefix in ((1e-3, "m"), (1e-6, "u"), (1e-9, "n")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
