"""The record of GPUs in the documentation: markdown from the newest stored run of each.

Each cell has times faster than torch's bfloat16; the tables of a shape also have microseconds, and
the speed at which the weight is read relative to a plain read of as many bytes in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.problems import CUDA_QUICK_SHAPES, layers_of
from bench.results import BASELINE, TIMED, Case, Entry, Run
from bench.tables import left_out, markdown, newest, ratio_rows, slower

NOTHING_STORED = (
    "No measurement on a GPU is stored yet: `python -m bench.run --device cuda` makes one, and "
    "`python docs/generate.py` puts it here."
)
# Of a record beside a newer one of the same GPU.
_OLDER = "Shapes that no newer record has. Kernels of later commits are not in these figures."
READ_PICTURE, SPEED_PICTURE = "pictures/gpu_read.png", "pictures/gpu_speed.png"  # in docs
_ABSENT = "-"
_SPEED_SHAPE = (14336, 4096)  # in the README, with so many rows of x:
_SPEED_ROWS = (1, 4, 16, 64, 256, 1024, 4096)
SPEED_NAMES = ("NVFP4", "MXFP8", "KBIT4", "humming nvfp4", BASELINE)


def gpu_speed() -> str:
    """For the README: one large layer."""
    return speed_tables(newest("cuda"))


def gpu_performance() -> str:
    """For docs/performance.md: everything."""
    return performance_tables(newest("cuda"))


def speed_tables(runs: Sequence[Run]) -> str:
    """Of each GPU one large layer."""
    parts = []
    for run in runs:
        measured = (cases_of(run, shape) for shape in (_SPEED_SHAPE, *CUDA_QUICK_SHAPES))
        cases = next(filter(None, measured), None)
        if cases:
            changed = " with changes" if run.dirty else ""
            told = f"commit {run.commit[:12] or 'unknown'}{changed}, {run.date[:10]}"
            parts += [f"{run.machine['gpu']} ({told}):", ratio_table(cases)]
    return "\n\n".join(parts) or NOTHING_STORED


def performance_tables(runs: Sequence[Run]) -> str:
    parts, shown = [], set[str]()
    for run in runs:
        gpu = run.machine["gpu"]
        if gpu in shown:
            parts += [f"### {gpu}, {run.date[:10]}", machine(run), _OLDER]
        else:
            parts += [f"### {gpu}", machine(run)]
            parts.append(f"![Times the speed of torch's bfloat16, by shape and M]({SPEED_PICTURE})")
            parts.append(f"![How close to a plain read of memory, by shape and M]({READ_PICTURE})")
        shown.add(gpu)
        for shape in dict.fromkeys(case.shape for case in run.cases):
            parts.append(shape_section(cases_of(run, shape)))
        parts += [
            slower(run.cases, run.baseline),
            left_out({**run.missing, **run.skipped}, run.cases),
        ]
    return "\n\n".join(filter(None, parts)) or NOTHING_STORED


def machine(run: Run) -> str:
    """One sentence: where, with what, when."""
    facts = run.machine
    software = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    changed = " with changes" if run.dirty else ""
    flops = facts["product_flops_per_second"] / 1e12
    return (
        f"{facts['gpu']}, driver {facts['driver']}, {facts['l2_bytes'] / 1e6:.0f} MB of L2 cache; "
        f"torch multiplies bfloat16 squares of 8192 at {flops:.0f} TFLOPS; {software}; commit "
        f"{run.commit[:12] or 'unknown'}{changed}, {run.date[:10]}."
    )


def cases_of(run: Run, shape: tuple[int, int]) -> list[Case]:
    """In the order of m."""
    return sorted((case for case in run.cases if case.shape == shape), key=lambda case: case.m)


def ratio_table(cases: Sequence[Case]) -> str:
    """One shape, at the m of the README."""
    shown = [case for case in cases if case.m in _SPEED_ROWS]
    first = cases[0]
    headings = [f"{first.n} x {first.k}, M =", *(str(case.m) for case in shown)]
    return markdown(headings, ratio_rows(shown, SPEED_NAMES))


def shape_section(cases: Sequence[Case]) -> str:
    """Ratios, then microseconds and how close to a read."""
    first = cases[0]
    layers = layers_of(*first.shape)
    title = f"#### {first.n} x {first.k}" + (f" ({', '.join(layers)})" if layers else "")
    ms = [f"M={case.m}" for case in cases]
    ratios = markdown([f"times {BASELINE}", *ms], ratio_rows(cases))
    times = markdown(["us, and % of read", *ms], [_times(name, cases) for name in _names(cases)])
    return f"{title}\n\n{ratios}\n\n{times}"


def _names(cases: Sequence[Case]) -> list[str]:
    """Ours, the others, then the reads."""
    entries = {entry.rival: entry for case in cases for entry in case.entries}
    order = ("ours", "rival", "ceiling")
    return sorted(entries, key=lambda name: order.index(entries[name].role))


def _times(name: str, cases: Sequence[Case]) -> list[str]:
    entries = [case.entry(name) for case in cases]
    ours = any(entry.role == "ours" for entry in entries if entry)
    cells = [_time(case, entry) for case, entry in zip(cases, entries, strict=True)]
    return [f"**{name}**" if ours else name, *cells]


def _time(case: Case, entry: Entry | None) -> str:
    if entry is None:
        return _ABSENT
    if entry.outcome != TIMED or not entry.time:
        return entry.outcome
    percent = case.percent_of_ceiling(entry)
    read = "" if percent is None or entry.role == "ceiling" else f" ({percent:.0f}%)"
    return f"{entry.time.median:.1f}{read}"
