"""CTAs of a cluster load from DSMEM what they store and nothing more."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.formats import NVFP4
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul.stream.build import stream_build
from blockscale.kernels.matmul.stream.config import Config
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu
from blockscale.runtime.cuda import FOLDER

SOURCE = Path(__file__).with_name("cluster_reduce.cpp")
# A cluster of two; without warps that share k, which would have to synchronise.
CONFIG = Config(
    tile_m=8, tiles_per_warp=2, n_warps=4, k_warps=1, stages=2, tile_k=256, ctas_per_sm=1,
    splits=2, cluster=True,
)  # fmt: skip


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("tile_m", [8, 64])  # one quad of a thread at a time, or several
def test_no_load_is_left_behind(tile_m, tmp_path):
    problem = Problem(
        verb="matmul", m=tile_m, n=64, k=256, x="bfloat16", out="float32", device=gpu("sm_90"),
        w=str(Kind(NVFP4, fragments(NVFP4))),
    )  # fmt: skip
    build = stream_build(problem, replace(CONFIG, tile_m=tile_m), symmetric=True)
    defined = [f"-D{name}={value}" for name, value in build.defines]
    defined.append(f'-DKERNEL_FILE="{build.path}"')
    command = ["c++", "-std=c++20", "-O0", "-w", f"-I{FOLDER}", *defined, SOURCE]
    subprocess.run([*command, "-o", tmp_path / "reduce"], check=True)
    done = subprocess.run([tmp_path / "reduce"], capture_output=True, text=True)
    assert done.stdout.strip() == "right"
