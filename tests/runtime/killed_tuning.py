"""Run by `test_kills.py`, in a process of its own: keep results of tuning, killed at every step."""

import os
import sys
from pathlib import Path

from blockscale.runtime import tuned
from killing import run_killed

HERE = tuned.Machine("NVIDIA H200, 132 SMs, 140 GiB", "sm_90")


def result(m):
    measured = tuned.Measured("stream", {"stages": 3}, 10.0)
    return tuned.Result({"verb": "matmul", "m": m}, "abc", measured, measured, "2026-11-15", {})


def main(folder: Path) -> None:
    os.environ["BLOCKSCALE_CACHE"] = str(folder)
    path = tuned.keep(HERE, result(1))
    before = path.read_bytes()
    tuned.keep(HERE, result(2))
    after = path.read_bytes()
    kills = 0
    while True:
        path.write_bytes(before)
        done = run_killed(lambda: tuned.keep(HERE, result(2)), folder, kills)
        assert path.read_bytes() in (before, after)  # whole, whenever it was killed
        tuned.forget()
        assert tuned.keep(HERE, result(2)) == path
        assert path.read_bytes() == after
        assert {each.name for each in path.parent.iterdir()} == {path.name, "lock"}
        if done:
            break
        kills += 1
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
