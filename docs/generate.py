"""Write the generated parts of the documentation: python docs/generate.py [--check]

Text between <!-- generated: NAME --> and <!-- end --> comes from the functions below, so that it
cannot drift from the code; measurements come from the runs stored in bench/results, faults from the
tests that are marked with them, and the drawing of packages from what they import.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from blockscale import cli
from blockscale.formats import CATALOGUE, NVFP4
from blockscale.ops import example, explain
from blockscale.runtime import VARIABLES, gpu

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # bench and docs are not installed

from bench.codebook_tables import codebooks  # noqa: E402
from bench.counters_tables import gpu_counters  # noqa: E402
from bench.cuda_tables import gpu_performance, gpu_speed  # noqa: E402
from bench.decode_tables import decoding  # noqa: E402
from bench.gemm_tables import gpu_gemm  # noqa: E402
from bench.model_tables import model_speed, whole_models  # noqa: E402
from bench.quality_tables import importance  # noqa: E402
from bench.serving_tables import (  # noqa: E402
    serving_soak,
    serving_speed,
    serving_steps,
    serving_tests,
)
from bench.tables import performance, speed  # noqa: E402
from bench.verbs_tables import gpu_verbs  # noqa: E402
from docs.coverage import coverage_tables, missing  # noqa: E402
from docs.faults import fault_table  # noqa: E402
from docs.gpus import gpu_tables  # noqa: E402
from docs.imports import imports_picture  # noqa: E402

PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / name
        for name in (
            "formats.md",
            "cli.md",
            "performance.md",
            "models.md",
            "reliability.md",
            "compat.md",
            "coverage.md",
            "gpus.md",
            "serving.md",
        )
    ),
]
COVERAGE = ROOT / "docs" / "coverage.md"  # asks kernels, some of which are not built everywhere
PICTURE = ROOT / "docs" / "pictures" / "imports.svg"
QUALITY = ROOT / "bench" / "results" / "quality" / "smollm2.json"


def formats() -> str:
    """The format table."""
    lines = [
        "| format | element | block | scale | tensor scale | bits/value | largest element |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in CATALOGUE.values():
        scale = entry.tensor_scale if entry.has_tensor_scale else "-"
        cells = [
            f"`{entry.name.upper()}`",
            entry.element.name,
            entry.block,
            entry.scale.name,
            scale,
            f"{entry.bits_per_value:g}",
            f"{entry.element.max:g}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def explained() -> str:
    """What `blockscale explain 1 14336 4096 --gpu h200` prints."""
    problem = example("matmul", NVFP4, gpu("h200"), n=14336, k=4096)
    if problem is None:
        raise RuntimeError("NVFP4 has products")
    return f"```text\n{explain(problem)}\n```"


def environment() -> str:
    """The environment variables."""
    return "\n".join(f"- `{name}`: {meaning}." for name, meaning in VARIABLES.items())


def commands() -> str:
    """Every command with its arguments and the first sentence of its help."""
    lines = ["| command | |", "|---|---|"]
    for name, command in get_command(cli.commands).commands.items():
        words = [word for each in command.params if (word := _word(each))]
        meaning = (command.help or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| `{' '.join(['blockscale', name, *words])}` | {meaning} |")
    return "\n".join(lines)


def _word(parameter: Any) -> str:
    """How an argument, or an option that must be given, stands in a command line."""
    name = parameter.name.upper()
    if parameter.param_type_name == "argument":
        return name if parameter.required else f"[{name}]"
    return f"{parameter.opts[0]} {name}" if parameter.required else ""


def quality() -> str:
    """What each format does to a model's perplexity; long runs first."""
    found = json.loads(QUALITY.read_text())
    original = found["reference"]
    lines = [
        "| weights | bits/weight | perplexity | ratio | KL, nats | tokens |",
        "|---|---|---|---|---|---|",
        "| unquantised | 16 | {perplexity:.2f} | 1 | 0 | {tokens:,} |".format(**original),
    ]
    row = (
        "| {name} | {bits_per_weight:.2f} | {perplexity:.2f} | {ratio:.3f} ± {ratio_error:.3f} "
        "| {divergence:.3f} ± {divergence_error:.3f} | {tokens:,} |"
    )
    lines += [row.format(**each) for each in found["rows"] + found["short_rows"]]
    return "\n".join(lines)


def faults() -> str:
    """What is broken on purpose, and what comes of it."""
    return fault_table(ROOT / "tests")


GENERATORS = {
    "formats": formats,
    "environment": environment,
    "explained": explained,
    "commands": commands,
    "speed": speed,
    "performance": performance,
    "decoding": decoding,
    "model_speed": model_speed,
    "whole_models": whole_models,
    "gpu_speed": gpu_speed,
    "gpu_performance": gpu_performance,
    "gpu_gemm": gpu_gemm,
    "gpu_verbs": gpu_verbs,
    "gpu_counters": gpu_counters,
    "quality": quality,
    "importance": importance,
    "codebooks": codebooks,
    "faults": faults,
    "coverage": coverage_tables,
    "gpus": gpu_tables,
    "serving_tests": serving_tests,
    "serving_speed": serving_speed,
    "serving_steps": serving_steps,
    "serving_soak": serving_soak,
}


def generate(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{GENERATORS[match[2]]()}\n{match[3]}"

    pattern = r"(<!-- generated: (\w+) -->)\n.*?(<!-- end -->)"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def main() -> int:
    pages = PAGES
    if reason := missing():
        print(f"{COVERAGE.name} is left as it is: {reason}")
        pages = [page for page in PAGES if page != COVERAGE]
    texts = {page: generate(page.read_text()) for page in pages} | {PICTURE: imports_picture()}
    stale = {path: text for path, text in texts.items() if path.read_text() != text}
    for path, text in stale.items():
        print(f"{path.name} is out of date: python docs/generate.py")
        if "--check" not in sys.argv:
            path.write_text(text)
    return len(stale) if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
