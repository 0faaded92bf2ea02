"""Some ways to do the same work, checked and then timed in turns, as measurements beside one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measurements import Measurement
from bench.results import FAILED, TIMED, WRONG
from bench.timing import Call, Clock, Stopwatch, ratio, spread, take_turns

FLOOR = "read"


@dataclass(frozen=True)
class Way:
    """check: how far its result is off, relatively; an error where nothing came out."""

    name: str
    calls: Callable[[], Sequence[Call]]
    check: Callable[[], float] | None = None


def duel(
    work: str,
    problem: str,
    ways: Sequence[Way],
    clock: Clock,
    seconds: float,
    *,
    beside: str = "",
    tolerance: float,
) -> list[Measurement]:
    """One for each way but `beside` and the floor, which they are compared with, if with any."""
    errors, reasons, outcomes, watches = {}, {}, {}, {}
    for way in ways:
        try:
            errors[way.name] = error = way.check() if way.check else None
            if error is not None and not error <= tolerance:  # NaN is not
                outcomes[way.name] = WRONG
                reasons[way.name] = f"relative error {error:.2g}, {tolerance:g} is allowed"
                continue
            watches[way.name] = clock.stopwatch(way.calls())
            outcomes[way.name] = TIMED
        except Exception as error:  # noqa: BLE001 whatever fails is reported by name
            outcomes[way.name], reasons[way.name] = FAILED, told(error)
    samples = _samples(watches, seconds)
    times = {name: spread([1e6 * each for each in taken]) for name, taken in samples.items()}
    found = []
    for way in ways:
        if way.name in (beside, FLOOR) and outcomes[way.name] == TIMED:
            continue
        both = way.name in samples and beside in samples
        found.append(
            Measurement(
                work=work,
                problem=problem,
                name=way.name,
                outcome=outcomes[way.name],
                reason=reasons.get(way.name, ""),
                error=errors.get(way.name),
                time=times.get(way.name),
                beside=beside,
                other=times.get(beside),
                ratio=ratio(samples[beside], samples[way.name]) if both else None,
                floor=times.get(FLOOR),
            )
        )
    return found


def _samples(watches: dict[str, Stopwatch], seconds: float) -> dict[str, list[float]]:
    return take_turns(watches, seconds) if watches else {}


def told(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
