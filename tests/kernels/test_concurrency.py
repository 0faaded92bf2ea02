"""Native code from several threads at once, and in children of fork."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import blockscale as bs
import hanging
import ways

pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)


TASKS = Path("/proc/self/task")
needs_proc = pytest.mark.skipif(not TASKS.exists(), reason="needs /proc to count threads")


def running_threads():
    return len(list(TASKS.iterdir()))


def problems():
    """Products of all algorithms, long enough to overlap."""
    shapes = [(1, 512, 1024), (5, 300, 512), (64, 256, 512), (33, 65, 2048)]
    cases = []
    for format in (bs.NVFP4, bs.KBIT3, bs.MXFP8):
        for m, n, k in shapes:
            w = bs.quantize(torch.randn(n, k), format).prepare()
            cases.append((torch.randn(m, k).bfloat16(), w, torch.randn(n)))
    return cases


def test_threads_that_call_at_once_get_the_results_of_one(threads):
    cases = problems()
    threads(3)
    expected = [bs.linear(*case) for case in cases]
    start = threading.Barrier(6)

    def work(seed):
        start.wait(hanging.SECONDS)
        order = torch.randperm(len(cases) * 4, generator=torch.Generator().manual_seed(seed))
        return all(
            torch.equal(bs.linear(*cases[i]), expected[i]) for i in (order % len(cases)).tolist()
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6), timeout=hanging.SECONDS))


def test_quantize_and_multiply_at_once(threads):
    threads(2)
    values, x = torch.randn(64, 512), torch.randn(3, 512)
    expected = bs.matmul(x, bs.quantize(values, bs.NVFP4).prepare())

    def work(_):
        return torch.equal(bs.matmul(x, bs.quantize(values, bs.NVFP4).prepare()), expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(24), timeout=hanging.SECONDS))


def test_the_pool_grows_and_is_reused(threads):
    """More threads than before, then fewer, then more than cores."""
    x, w, bias = problems()[2]
    expected = bs.linear(x, w, bias)
    for count in (1, 2, 5, 3, 16, 1, 16, 40):
        threads(count)
        for _ in range(5):
            assert torch.equal(bs.linear(x, w, bias), expected)


@needs_proc
def test_workers_are_started_once(threads):
    x, w, bias = problems()[2]
    threads(5)
    bs.linear(x, w, bias)
    before = running_threads()
    for _ in range(20):
        bs.linear(x, w, bias)
    assert running_threads() == before >= 5


def test_a_result_does_not_change_while_others_work(threads):
    """A thread's scratch memory is its own, and outlives no call."""
    cases = problems()
    threads(2)
    kept = [bs.linear(*case) for case in cases]
    copies = [y.clone() for y in kept]
    for case in cases * 3:
        bs.linear(*case)
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def true_in_a_fork(work):
    """What work() says in a child of fork; a child that hangs is ended."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    end = time.monotonic() + hanging.SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail(f"the child hung for {hanging.SECONDS} s")


def test_a_child_of_fork_computes(threads):
    threads(3)
    x, w, bias = problems()[0]
    expected = bs.linear(x, w, bias)  # the parent's pool is up

    def work():
        return all(torch.equal(bs.linear(x, w, bias), expected) for _ in range(5))

    assert true_in_a_fork(work)
    assert true_in_a_fork(lambda: true_in_a_fork(work))
    assert work()


@needs_proc
def test_a_child_of_fork_has_workers_of_its_own(threads):
    threads(3)
    x, w, bias = problems()[0]
    bs.linear(x, w, bias)

    def work():
        alone = running_threads()
        bs.linear(x, w, bias)
        return (alone, running_threads()) == (1, 3)

    assert true_in_a_fork(work)


def test_fork_while_other_threads_multiply(threads):
    """The lock of the pool may be held by a thread that the child does not have."""
    threads(2)
    x, w, bias = problems()[2]
    expected = bs.linear(x, w, bias)
    done = threading.Event()

    def keep_busy():
        while not done.is_set():
            bs.linear(x, w, bias)

    busy = [threading.Thread(target=keep_busy) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(5):
            assert true_in_a_fork(lambda: torch.equal(bs.linear(x, w, bias), expected))
    finally:
        done.set()
        for thread in busy:
            thread.join(hanging.SECONDS)


def test_workers_of_multiprocessing(threads):
    threads(2)
    x, w, bias = problems()[1]
    expected = bs.linear(x, w, bias)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map_async(row_sums, range(4)).get(hanging.SECONDS)
    assert found == [row_sums(i) for i in range(4)]
    assert torch.equal(bs.linear(x, w, bias), expected)


def row_sums(seed):
    """Numbers: tensors would need torch's own sharing."""
    torch.manual_seed(seed)
    w = bs.quantize(torch.randn(40, 128), bs.NVFP4).prepare()
    return bs.matmul(torch.randn(3, 128), w).sum(1).tolist()


INTERRUPTED = """
import signal
import torch, blockscale as bs
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
w, x = bs.quantize(torch.randn(512, 512), bs.KBIT4).prepare(), torch.randn(512, 512)
expected = bs.matmul(x, w)
try:
    print("begun", flush=True)
    while True:
        bs.matmul(x, w)
except KeyboardInterrupt:
    print(torch.equal(bs.matmul(x, w), expected))
"""


@pytest.mark.fault(
    "SIGINT while a product runs on all threads",
    outcome="KeyboardInterrupt once the product is done; the next one is right",
)
def test_a_product_may_be_interrupted():
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=hanging.SECONDS)
    assert out == "True\n"
