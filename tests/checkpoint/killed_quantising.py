"""Run by `test_kills.py`, in a process of its own: quantise, killed again and again until done."""

import sys
from itertools import islice
from pathlib import Path

import blockscale as bs
from blockscale.checkpoint import Settings, plan_conversion, run_plan
from blockscale.checkpoint.journal import JOURNAL
from checkpoint.models import bytes_of
from killing import random_points, run_killed

SETTINGS = Settings(bs.MXFP4, shard_size=10_000)


def main(source: Path, folder: Path, seeds: int) -> None:
    def quantise(target):
        run_plan(plan_conversion(source, SETTINGS), target)

    whole = folder / "whole" / "out"
    whole.parent.mkdir()
    quantise(whole)
    kills = 0
    for seed in range(seeds):
        target = folder / str(seed) / "out"
        target.parent.mkdir()
        points = [*islice(random_points(seed, 40), 3), None]
        for point in points:
            if run_killed(lambda target=target: quantise(target), target.parent, point):
                break
            kills += 1
            if target.exists() and not (target / JOURNAL).exists():
                break  # there was nothing left to do
        assert bytes_of(target) == bytes_of(whole), f"seed {seed}, killed at {points}"
        assert [path.name for path in target.parent.iterdir()] == ["out"], f"seed {seed}"
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
