"""The extension that repeats calls on a GPU without Python: where it is, or why it is not.

It is built when the package is installed from source, if there are a compiler and Python's headers;
without it the same calls run from Python, and cost the host more. `doctor` says which it is.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from blockscale.runtime.environment import replay_override
from blockscale.runtime.installed import installed_file

_VERSION = 6
_NAME, _FILE = "blockscale.runtime._replay", "_replay.abi3.so"


@lru_cache(maxsize=1)
def load_replay() -> Any | str:
    """The module of csrc/replay, or why there is none."""
    override = replay_override()
    if override == "0":
        return "BLOCKSCALE_REPLAY=0 turns it off"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python does not load extensions for CPython's stable ABI"
    path = Path(override) if override else installed_file(_FILE)
    if path is None or not path.exists():
        where = f" ({override} does not exist)" if override else ""
        return f"none was built{where}: reinstall from source with a C++17 compiler and Python.h"
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return f"torch {torch.__version__} has no C functions for DLPack"
    try:
        spec = spec_from_file_location(_NAME, path, loader=ExtensionFileLoader(_NAME, str(path)))
        module: Any = module_from_spec(spec)  # type: ignore[arg-type]  # there is a loader
        if module.VERSION != _VERSION:
            return f"{path} is of another version: reinstall the package"
        module.use(exchange, torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled)
    except (AttributeError, ImportError, ValueError) as error:  # the first: of somebody else
        return f"it does not load: {error}"
    return module
