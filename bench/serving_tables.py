"""Stored runs against a real vLLM (tests/serving) in the documentation."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bench.tables import markdown

STORED = Path(__file__).with_name("results") / "serving"


def serving_tests() -> str:
    """Which tests ran, how many of each, and what came of them."""
    run = _read("tests")
    return f"{_where(run)}:\n\n{cases_table(run['tests'])}"


def cases_table(tests: dict[str, str]) -> str:
    cases: dict[str, Counter[str]] = {}
    for name, outcome in tests.items():
        said = name.partition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")
        cases.setdefault(said, Counter())[outcome] += 1
    rows = [
        (said, ", ".join(f"{count} {outcome}" for outcome, count in found.items()))
        for said, found in cases.items()
    ]
    return markdown(["what is tested", "cases"], rows)


def serving_speed() -> str:
    """Tokens a second beside vLLM's own plain weights."""
    runs = [json.loads(path.read_text()) for path in sorted(STORED.glob("throughput*.json"))]
    return "\n\n".join(f"{_where(run)}, {speed_facts(run)}:\n\n{speed_table(run)}" for run in runs)


def speed_facts(run: dict[str, Any]) -> str:
    threads = "one thread" if run["threads"] == 1 else f"{run['threads']} threads"
    return f"{threads} for the products; {run['model']}, {run['dtype']}; {run['rounds']} rounds"


def speed_table(run: dict[str, Any]) -> str:
    rows = [
        (f"{run['format'].upper()}, x in {x}", requests, _spread(found))
        for x, by_requests in run["speed_beside_plain_by_x"].items()
        for requests, found in by_requests.items()
    ]
    return markdown(["", "requests", f"tokens a second beside plain {run['dtype']}"], rows)


def serving_steps() -> str:
    """CPU time of a step, and of the linear layers in it."""
    run = _read("decode_step")
    facts = f"{run['model']}; {run['requests']} requests; medians of {run['rounds']} rounds"
    return f"{_where(run)}; {facts}:\n\n{steps_table(run)}"


def steps_table(run: dict[str, Any]) -> str:
    kinds = {"decode": "a token of each", "prompts": f"prompts, {run['prompt_tokens']} tokens"}
    rows = [
        (said, name, *_parts(by_kind[kind]))
        for kind, said in kinds.items()
        for name, by_kind in run["cpu_ms"].items()
    ]
    return markdown(["step", "weights", "ms", "linear, ms", "the rest, ms"], rows)


def _parts(found: dict[str, float]) -> tuple[str, str, str]:
    step, linear = found["step"], found["linear"]
    return f"{step:.1f}", f"{linear:.1f}", f"{step - linear:.1f}"


def serving_soak() -> str:
    """What a server did under load."""
    run = _read("soak")
    return f"{_where(run)}:\n\n{soak_table(run)}"


def soak_table(run: dict[str, Any]) -> str:
    requests, before, after = run["requests"], *run["resident_mib"]
    lost, otherwise = requests["lost_when_the_server_was_killed"], requests["failed_otherwise"]
    rows = [
        ("requests answered in full", requests["finished"]),
        ("requests that the client left", requests["aborted_by_clients"]),
        ("requests with wrong tokens", run["wrong"]),
        ("lost when the server was killed, and at other times", f"{lost}, and {otherwise}"),
        ("first token", _latency(run["first_token"])),
        ("whole request (16 tokens)", _latency(run["request"])),
        ("memory of the server after each half of the load", f"{before:,.0f}, {after:,.0f} MiB"),
    ]
    return markdown(["", ""], [(name, str(value)) for name, value in rows])


def _read(name: str) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((STORED / f"{name}.json").read_text())
    return run


def _where(run: dict[str, Any]) -> str:
    used = run["versions"]
    versions = f"vLLM {used['vllm']}, torch {used['torch']}, transformers {used['transformers']}"
    return f"{run['machine']}; {versions}; commit {run['commit']}, {run['date']}"


def _spread(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} x ({found['lowest']:.2f} to {found['highest']:.2f})"


def _latency(found: dict[str, float]) -> str:
    return f"p50 {found['p50_ms']:,.0f} ms, p99 {found['p99_ms']:,.0f} ms"
