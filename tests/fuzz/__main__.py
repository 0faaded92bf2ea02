"""Look for files that a reader neither reads nor refuses clearly: make fuzz OPTIONS="--minutes 60"

Every case is made from the seed, the reader and a number, which a failure prints: the same command
with them repeats it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from itertools import count, islice
from pathlib import Path

from fuzz.harness import run_case
from fuzz.readers import readers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--reader", choices=list(readers()), help="only this one")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, help="so many of each reader, and no more")
    asked = parser.parse_args()
    chosen = [readers()[asked.reader]] if asked.reader else list(readers().values())
    print(f"seed {asked.seed}", flush=True)
    end = time.monotonic() + 60 * asked.minutes
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        for number in islice(count(asked.first), asked.cases):
            if time.monotonic() > end:
                break
            for reader in chosen:
                outcomes[run_case(reader, asked.seed, number, Path(folder) / "case")] += 1
    listed = ", ".join(f"{number:,} {what}" for what, number in outcomes.items())
    print(f"{outcomes.total():,} cases: {listed}")


def fast_folder() -> str | None:
    """Memory, where there is a file system of it."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    main()
