"""Teams of threads, ours and OpenMP's, watched by the sanitizers for threads, for addresses and for
undefined behaviour: many callers, calls inside items, items that throw, memory that is refused, and
fork."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

import hanging

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
CASES = ("callers", "nested", "failing", "refused", "forks", "forks_without_allocating")
WATCHED = {
    "nothing": [],
    "threads": ["-fsanitize=thread"],
    "addresses": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "openmp": ["-fopenmp"],
}
# The sanitizer for threads cannot follow those that a child of fork starts. The one for addresses
# takes its allocator's locks for itself: a child hangs if another thread had one at the fork.
WATCHED_CASES = [
    *(("threads", case) for case in CASES if not case.startswith("forks")),
    *(("addresses", case) for case in CASES if case != "forks"),
    ("nothing", "forks"),
    # Its runtime is not compiled for the sanitizer for threads, which sees none of its barriers.
    *(("openmp", case) for case in CASES),
]
OPTIONS = {
    # Memory that is refused is null here too.
    "TSAN_OPTIONS": "halt_on_error=1 allocator_may_return_null=1 atexit_sleep_ms=0",
    "ASAN_OPTIONS": "allocator_may_return_null=1 detect_leaks=0",
}
# Looks at every place where memory may be as the process ends, which takes 4 s on ARM.
LEAKS = {"ASAN_OPTIONS": "allocator_may_return_null=1"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program under each sanitizer, compiled when it is asked for."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("pool")

    @cache
    def compiled(watched):
        command = ["c++", "-std=c++17", "-O1", "-g", "-w", "-pthread", *WATCHED[watched]]
        sources = [HERE / "pool_stress.cpp", CSRC / "runtime" / "threads.cpp"]
        subprocess.run([*command, "-I", CSRC, *sources, "-o", folder / watched], check=True)
        return folder / watched

    return compiled


def run(*command, options=OPTIONS):
    return subprocess.run(
        command,
        env={**os.environ, **options},
        capture_output=True,
        text=True,
        timeout=hanging.SECONDS,
    )


def run_watched(program, case):
    """Without randomised addresses where the sanitizer for threads cannot live with them."""
    done = run(program, case)
    if "unexpected memory mapping" in done.stderr:
        done = run("setarch", "-R", program, case)
        if "setarch" in done.stderr:
            pytest.skip(f"addresses are randomised here: {done.stderr.strip()}")
    return done


def test_the_cases_are_all_of_them(programs):
    assert tuple(run(programs("nothing")).stdout.split()) == CASES


@pytest.mark.fault(
    "items of the pool of threads throw, or its memory is refused, while others call and fork",
    outcome="the caller gets the exception once no thread works on its items; others are unharmed",
)
@pytest.mark.parametrize(("watched", "case"), WATCHED_CASES)
def test_nothing_is_found(programs, watched, case):
    program = programs(watched)
    done = run(program, "openmp", case) if watched == "openmp" else run_watched(program, case)
    assert done.returncode == 0, done.stderr


def test_nothing_is_leaked(programs):
    """By any of the cases: one process looks for what they have left."""
    cases = [case for watched, case in WATCHED_CASES if watched == "addresses"]
    done = run(programs("addresses"), *cases, options=LEAKS)
    assert done.returncode == 0, done.stderr
