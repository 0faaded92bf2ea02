"""One shape: everyone prepares the weight, is verified at every m, and is timed in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.duel import told
from bench.problems import layers_of
from bench.results import FAILED, TIMED, WRONG, Case, Entry
from bench.rivals import Prepared, Rival, TorchLinear
from bench.timing import Clock, Stopwatch, copies, ratio, spread, take_turns
from bench.verify import Verdict, expect, judge

# Of memory, for one copy in each form, the weight in float32 while it is verified, and as much
# again for what rivals need while they quantise.
_BYTES_PER_WEIGHT = 32


@dataclass
class Contestant:
    """A rival with its ring of weights. A failure is of one m, or at 0 of all."""

    rival: Rival
    ring: list[Prepared] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def failure(self, m: int) -> str:
        return self.failures.get(0) or self.failures.get(m, "")

    def may_be_timed(self, m: int) -> bool:
        verdict = self.verdicts.get(m)
        return not self.failure(m) and not (verdict and verdict.reason)

    def takes_part(self, m: int) -> bool:
        return not self.rival.only_rows or m in self.rival.only_rows


def lacks_memory(n: int, k: int, free: int) -> str:
    """Why this shape cannot be measured with so many bytes; "" if it can."""
    needed = n * k * _BYTES_PER_WEIGHT
    if needed <= free:
        return ""
    return f"needs about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"


def contest(
    n: int,
    k: int,
    rows: Sequence[int],
    rivals: Sequence[Rival],
    clock: Clock,
    seconds: float,
    dtype: torch.dtype = torch.bfloat16,
) -> Iterator[Case]:
    """A case for each m, as it is done; beside torch's product in `dtype`, which x has."""
    generator = torch.Generator(clock.device).manual_seed(0)
    w = torch.randn(n, k, generator=generator, device=clock.device).bfloat16()
    x = torch.randn(max(rows), k, generator=generator, device=clock.device).to(dtype)
    space = clock.ring_bytes(len(rivals))
    contestants = [_enter(rival, w, x, rows, space) for rival in rivals]
    del w
    for m in rows:
        yield _case(contestants, x[:m], n, clock, seconds)


def _enter(rival: Rival, w: Tensor, x: Tensor, rows: Sequence[int], space: int) -> Contestant:
    contestant = Contestant(rival)
    try:
        prepared = rival.prepare(w)
        if rival.role != "ceiling":
            _verify(contestant, prepared, x, rows)
        more = copies(prepared.nbytes, space) - 1
        contestant.ring = [prepared, *(prepared.copy() for _ in range(more))]
    except Exception as error:  # noqa: BLE001 others' code may fail in any way, and is reported
        contestant.failures[0] = told(error)
    return contestant


def _verify(contestant: Contestant, prepared: Prepared, x: Tensor, rows: Sequence[int]) -> None:
    rival = contestant.rival
    expected = expect(x.to(rival.dtype), prepared.decoded(), rival.dtype, rival.x_block)
    for m in filter(contestant.takes_part, rows):
        try:
            y = prepared.bind(x[:m].to(rival.dtype))()
            contestant.verdicts[m] = judge(y, expected.first_rows(m))
        except Exception as error:  # noqa: BLE001 as above
            contestant.failures[m] = told(error)


def _case(
    contestants: Sequence[Contestant], x: Tensor, n: int, clock: Clock, seconds: float
) -> Case:
    m, k = x.shape
    present = [contestant for contestant in contestants if contestant.takes_part(m)]
    stopwatches: dict[str, Stopwatch] = {}
    for contestant in present:
        if contestant.may_be_timed(m):
            try:
                given = x.to(contestant.rival.dtype)
                calls = [copy.bind(given) for copy in contestant.ring]
                stopwatches[contestant.rival.name] = clock.stopwatch(calls)
            except Exception as error:  # noqa: BLE001 as above
                contestant.failures[m] = told(error)
    samples = take_turns(stopwatches, seconds)
    entries = [_entry(contestant, x, samples) for contestant in present]
    return Case(n=n, k=k, m=m, layers=layers_of(n, k), entries=entries)


def _entry(contestant: Contestant, x: Tensor, samples: dict[str, list[float]]) -> Entry:
    rival, m = contestant.rival, len(x)
    verdict, failure = contestant.verdicts.get(m), contestant.failure(m)
    taken, baseline = samples.get(rival.name), samples.get(TorchLinear(x.dtype).name)
    outcome = FAILED if failure else WRONG if taken is None else TIMED
    return Entry(
        rival=rival.name,
        role=rival.role,
        outcome=outcome,
        reason=failure or (verdict.reason if verdict else ""),
        error=verdict.error if verdict else None,
        time=spread([1e6 * sample for sample in taken]) if taken else None,
        ratio=ratio(baseline, taken) if baseline and taken else None,
        weight_bytes=contestant.ring[0].nbytes if contestant.ring else 0,
        kernel="" if failure else contestant.ring[0].kernel(x.to(rival.dtype)),
    )
