"""A bounded load against a real server of vLLM's on the loopback.

Streaming clients with long and short prompts, some of which go away in the middle; then the server
is killed under load, started again, and loaded again. Every token of every request that was
answered must be that of offline generation, and the memory of the server must stop growing.

    python -m serving.soak --requests 120 --out bench/results/serving/soak.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from serving.record import PATIENCE, written
from serving.served_models import COMMON, add_tokenizer, make_plain, offline, pack

SHORT, LONG = range(1, 9), range(120, 200)  # tokens of a prompt
NEW = 16
MODEL = "tiny"
CLIENTS = 6
STARTUP_S, REQUEST_S = 600 * PATIENCE, 120 * PATIENCE
# Pages of the KV cache are touched one by one: a small cache has been touched when half of the
# load is done. Growth from then on is a leak; allocators keep some tens of megabytes of their own.
KV_BLOCKS, LEAK_MIB = 48, 48


@dataclass
class Tally:
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    wrong: int = 0
    first_token_s: list[float] = field(default_factory=list)
    request_s: list[float] = field(default_factory=list)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server(folder: Path, port: int, log: Path):
    """In a process group of its own, which ends with the block however it is left."""
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *(
            "--served-model-name",
            MODEL,
            "--port",
            str(port),
            "--dtype",
            "float32",
            "--max-model-len",
            "256",
        ),
        *("--max-num-seqs", str(CLIENTS), "--enforce-eager"),
        *("--num-gpu-blocks-override", str(KV_BLOCKS), "--no-enable-prefix-caching"),
    ]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    settings["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | settings,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60 * PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


async def is_ready(session, port: int, process, log: Path) -> None:
    end = time.monotonic() + STARTUP_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended:\n{log.read_text()[-4000:]}")
        try:
            async with session.get(f"http://127.0.0.1:{port}/health") as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass  # nobody listens yet
        await asyncio.sleep(1)
    raise RuntimeError(f"the server is not ready after {STARTUP_S} s:\n{log.read_text()[-4000:]}")


async def request(session, port: int, prompt: list[int], stop_after: int | None):
    """The tokens of one streamed completion, and when the first came; a client may hang up."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": NEW,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    start, first, tokens = time.monotonic(), None, []
    async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            data = line.decode().strip().removeprefix("data: ")
            if not data or data == "[DONE]":
                continue
            tokens += json.loads(data)["choices"][0].get("token_ids") or []
            first = first or time.monotonic() - start
            if stop_after is not None and len(tokens) >= stop_after:
                break
    return tokens, first, time.monotonic() - start


async def client(session, port: int, jobs, expected, tally: Tally) -> None:
    import aiohttp

    while jobs:
        prompt, stop_after = jobs.pop()
        try:
            tokens, first, took = await asyncio.wait_for(
                request(session, port, prompt, stop_after), REQUEST_S
            )
        except (aiohttp.ClientError, OSError):
            tally.failed += 1
            continue
        wanted = expected[tuple(prompt)]
        tally.wrong += tokens != wanted[: len(tokens)]
        if stop_after is not None:
            tally.aborted += 1
            continue
        tally.wrong += len(tokens) != NEW
        tally.finished += 1
        tally.first_token_s.append(first)
        tally.request_s.append(took)


async def load(port: int, jobs, expected, tally: Tally, process, log: Path, kill_after=None):
    import aiohttp

    async with aiohttp.ClientSession() as session:
        await is_ready(session, port, process, log)
        clients = [client(session, port, jobs, expected, tally) for _ in range(CLIENTS)]
        if kill_after is not None:
            clients.append(kill(process, jobs, len(jobs) - kill_after))
        await asyncio.gather(*clients)


async def kill(process, jobs, left: int) -> None:
    """While requests are under way."""
    while len(jobs) > left:
        await asyncio.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)


def make_jobs(prompts, count: int, random_: random.Random):
    """A fifth of the clients hang up after a few tokens."""
    return [
        (random_.choice(prompts), random_.randint(1, 4) if random_.random() < 0.2 else None)
        for _ in range(count)
    ]


def resident_mib(leader: int) -> float:
    """Of the processes of a group."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if int(fields[3]) == leader:  # its session
            total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total / 2**20


def percentiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50_ms": round(1e3 * cuts[49], 1), "p99_ms": round(1e3 * cuts[98], 1)}


def soak(folder: Path, expected, count: int, scratch: Path) -> dict[str, object]:
    """Two halves of a load, a kill in the middle of a third, and a fourth after the restart."""
    random_ = random.Random(0)
    prompts = [list(prompt) for prompt in expected]
    tally, memory = Tally(), []
    port, log = free_port(), scratch / "server.log"
    with server(folder, port, log) as process:
        for _ in range(2):
            jobs = make_jobs(prompts, count // 3, random_)
            asyncio.run(load(port, jobs, expected, tally, process, log))
            memory.append(resident_mib(process.pid))
        before = tally.finished + tally.aborted
        jobs = make_jobs(prompts, count // 3, random_)
        asyncio.run(load(port, jobs, expected, tally, process, log, kill_after=CLIENTS * 2))
        assert process.wait(30 * PATIENCE) != 0
    lost, between = tally.failed, tally.finished + tally.aborted - before
    port = free_port()
    with server(folder, port, log) as process:
        jobs = make_jobs(prompts, count // 3, random_)
        asyncio.run(load(port, jobs, expected, tally, process, log))
    return {
        "requests": {
            "finished": tally.finished,
            "aborted_by_clients": tally.aborted,
            "lost_when_the_server_was_killed": lost,
            "answered_before_the_kill": between,
            "failed_otherwise": tally.failed - lost,
        },
        "wrong": tally.wrong,
        "first_token": percentiles(tally.first_token_s),
        "request": percentiles(tally.request_s),
        "resident_mib": [round(each, 1) for each in memory],
        "growth_mib": round(memory[1] - memory[0], 1),
    }


def judge(found: dict[str, object]) -> list[str]:
    """What is wrong with a run."""
    requests, problems = found["requests"], []
    if found["wrong"]:
        problems.append(f"{found['wrong']} requests had tokens that offline generation has not")
    if requests["failed_otherwise"]:
        problems.append(f"{requests['failed_otherwise']} requests failed while the server was up")
    if found["growth_mib"] > LEAK_MIB:
        problems.append(f"the server grew by {found['growth_mib']} MiB in the second half")
    return problems


def run(count: int, base: Path) -> dict[str, object]:
    """With a model that is made here."""
    random_ = random.Random(1)
    lengths = [random_.choice(SHORT if i % 3 else LONG) for i in range(12)]
    prompts = [random_.choices(range(COMMON["vocab_size"]), k=length) for length in lengths]
    plain = make_plain("Llama", base / "plain")
    folder = add_tokenizer(pack(plain, base / "packed", "compressed-tensors", "nvfp4"))
    answers = offline(folder, prompts, NEW)
    expected = {tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)}
    return soak(folder, expected, count, base)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = run(options.requests, Path(scratch))
    problems = judge(found)
    print(json.dumps(found, indent=1))
    if options.out is not None and not problems:
        written(options.out, {"model": "random Llama, hidden 128, NVFP4", **found})
    if problems:
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
