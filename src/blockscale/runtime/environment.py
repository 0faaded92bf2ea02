"""The environment variables, all of them. Nothing else in the library reads the environment."""

from __future__ import annotations

import os

VARIABLES = {
    "BLOCKSCALE_CHECK": "1: read group sizes and given tensor scales back from the GPU and raise "
    "on bad ones, which synchronises; by default sizes are clipped on the device",
}


def checks_enabled() -> bool:
    return os.environ.get("BLOCKSCALE_CHECK", "0") not in ("", "0")
