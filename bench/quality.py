"""What formats and the importance of columns do to a model's predictions: python -m bench.quality

Every row is a copy of one model, quantised by a recipe and judged on the same text beside the
unquantised original. Columns are alike ("none"), or weighed by inputs that were measured on random
token ids ("random") or on text that the judge does not read ("text").
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from bench.machine import commit, describe_machine, versions
from blockscale.models import Quality, Recipe, judge, load_model, load_tokenizer, tokenize
from blockscale.nn import measure_importance

WINDOW = 512
_CALIBRATION = 8192  # tokens of "text"
_ORIGINAL = "original"
_FORMATS = ("mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "kbit5", "kbit4", "nvfp4", "mxfp4", "kbit3")
_MIXED = ("*.v_proj=kbit5,kbit4", "*.k_proj=kbit5,*.v_proj=kbit5,kbit4")  # most gain a byte


@dataclass(frozen=True)
class Row:
    recipe: str
    importance: str  # "none", "random" or "text"

    def __str__(self) -> str:
        return f"{self.recipe}:{self.importance}"


ROWS = (
    *(Row(format, "none") for format in (*_FORMATS, "kbit2", *_MIXED)),
    *(Row(format, "random") for format in (*_FORMATS, *_MIXED)),
    *(Row(format, "text") for format in ("kbit4", "nvfp4", "kbit3")),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    rows = [row for row in ROWS if any(fnmatchcase(str(row), only) for only in arguments.only)]
    if not rows:
        raise ValueError(f"--only {arguments.only}: the rows are {', '.join(map(str, ROWS))}")
    device, revision = torch.device(arguments.device), commit()
    ids = tokenize(load_tokenizer(arguments.model), None, arguments.tokens + 1 + _CALIBRATION)
    text, rest = ids[: arguments.tokens + 1], ids[-_CALIBRATION:]
    original = load_model(arguments.model, torch.float32, device)
    found = _judge(_models(original, rows, rest), text)
    run = _record(arguments, device, revision, rows, found)
    Console(highlight=False).print(_table(run))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(run, indent=1) + "\n")
    return 0


def _models(original: Any, rows: Sequence[Row], text: Tensor) -> dict[str, Any]:
    wanted = {row.importance for row in rows}
    importance = {
        "none": None,
        "random": measure_importance(original) if "random" in wanted else None,
        "text": measure_importance(original, lambda model: _read(model, text))
        if "text" in wanted
        else None,
    }
    models = {_ORIGINAL: original}
    for row in rows:
        recipe = Recipe.parse(row.recipe)
        models[str(row)] = recipe.copy_of(original, importance=importance[row.importance])
    return models


def _read(model: Any, text: Tensor) -> None:
    for window in text.to(model.device).split(WINDOW):
        model(input_ids=window[None], use_cache=False)


def _judge(models: dict[str, Any], ids: Tensor) -> list[Quality]:
    columns = (TextColumn("{task.completed} tokens"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(ids) - 1)
        return judge(
            models,
            ids,
            reference=_ORIGINAL,
            length=WINDOW,
            on_tokens=lambda count: bar.advance(task, count),
        )


def _record(
    arguments: argparse.Namespace,
    device: torch.device,
    revision: tuple[str, bool],
    rows: Sequence[Row],
    found: list[Quality],
) -> dict[str, Any]:
    head, changed = revision
    original, *judged = found
    return {
        "model": arguments.model.name,
        "text": f"pydoc_data.topics of Python {sys.version_info[0]}.{sys.version_info[1]}",
        "window": WINDOW,
        "device": _name(device),
        "versions": versions(("torch", "transformers", "blockscale")),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": head,
        "changed": changed,
        "reference": asdict(original),
        "rows": [
            {**asdict(quality), "name": row.recipe, "importance": row.importance}
            for row, quality in zip(rows, judged, strict=True)
        ],
    }


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{describe_machine(threads)['cpu']}, {threads} threads"


def _table(run: dict[str, Any]) -> Table:
    original = run["reference"]
    title = (
        f"{run['model']} on {run['device']}: perplexity {original['perplexity']:.2f} over "
        f"{original['tokens']:,} tokens, unquantised"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    table.add_column("weights", overflow="fold", min_width=12)
    table.add_column("importance", no_wrap=True)
    for heading in ("bits/weight", "perplexity", "ratio", "KL, nats"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in run["rows"]:
        table.add_row(
            row["name"],
            row["importance"],
            f"{row['bits_per_weight']:.2f}",
            f"{row['perplexity']:.2f}",
            f"{row['ratio']:.4f} ± {row['ratio_error']:.4f}",
            f"{row['divergence']:.4f} ± {row['divergence_error']:.4f}",
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.quality", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--model", type=Path, default=Path("build/smollm2"), help="a folder; `make demo` makes one"
    )
    parser.add_argument("--tokens", type=int, default=40_960, help="of text that is predicted")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="rows, as in 'kbit4:*'"
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    parser.add_argument("--out", type=Path, help="JSON to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
