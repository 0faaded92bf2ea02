"""Two processes of one group, for tests: what a test needs of them, they do in one start.

Starting Python with torch and transformers takes seconds, so a test module names all it wants from
two ranks at once, as functions of a script beside it, and looks at what they leave behind.
"""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from safetensors.torch import load_file, save_file

SECONDS = 240  # until ranks that wait for each other are given up


def run_two_ranks(script, folder):
    """Run SCRIPT with (FOLDER, RANK) twice; where one fails the other is stopped too."""
    command = [sys.executable, str(Path(__file__).parent / script), str(folder)]
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ranks = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True, env=place)
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=SECONDS)
            assert rank.returncode == 0, errors[-4000:]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def result(folder, name, rank=0):
    """What a function of the script returned."""
    return load_file(folder / f"{name}.{rank}.safetensors")


def act_as_rank(folder, rank, functions):
    """In the script: join the group, and keep what each function returns, by its name."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/group",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    for function in functions:
        found = function(folder)
        save_file(found, folder / f"{function.__name__}.{rank}.safetensors")
        dist.barrier()
    dist.destroy_process_group()
