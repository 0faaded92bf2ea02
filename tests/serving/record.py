"""A stored run: what was found, when, with which versions, on which machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# What every limit is multiplied by: on a machine that others use nothing hangs, it only waits.
PATIENCE = float(os.environ.get("SERVING_PATIENCE", "1"))


def written(path: Path, found: dict[str, Any]) -> None:
    path = ROOT / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**circumstances(), **found}, indent=1) + "\n")


def earlier(path: Path) -> dict[str, str]:
    """Tests that are recorded already, of this commit and these versions: a run may be in parts."""
    if not (ROOT / path).exists():
        return {}
    stored, now = json.loads((ROOT / path).read_text()), circumstances()
    same = all(stored[key] == now[key] for key in ("commit", "versions", "machine"))
    return stored["tests"] if same else {}


def circumstances() -> dict[str, Any]:
    import torch
    import vllm

    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip(),
        "versions": {
            "blockscale": version("blockscale"),
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "python": platform.python_version(),
        },
        "machine": _cpu(),
    }


def _cpu() -> str:
    told = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    facts = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    return f"{facts.get('Model name', platform.machine()).strip()}, {os.cpu_count()} threads"
