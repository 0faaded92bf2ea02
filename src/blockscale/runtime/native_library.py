"""The native CPU library: where it is, or why it is not.

It is built when the package is installed from source, if there is a compiler; without it everything
runs on the reference kernels, and `doctor` and `explain` say so.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import Structure, byref, c_int64
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from blockscale.runtime.environment import isa_override, native_override
from blockscale.runtime.installed import installed_file
from blockscale.runtime.native import ABI_VERSION, ISAS, isas_up_to
from blockscale.runtime.shared_threads import share_torch_threads

_FILE = "libblockscale_cpu" + {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


class Native(NamedTuple):
    """The loaded library. Calls release the GIL."""

    library: ctypes.CDLL
    path: Path
    isa: str  # the best of this CPU, or what BLOCKSCALE_ISA asks for
    threads: str  # whose they are

    def call(self, function: str, arguments: Structure) -> None:
        """Run one of the library's functions on its struct.

        Nothing that it has written is to be read after an error; the next call starts afresh.
        """
        entry = getattr(self.library, function)
        entry.restype = c_int64
        if refused := entry(byref(arguments)):
            raise MemoryError(
                f"{function}: the system refused {refused:,} bytes of memory to work in: "
                "free some, or pass fewer rows of x at a time"
            )


@lru_cache(maxsize=1)
def load_native() -> Native | str:
    """The library, or why there is none."""
    override = native_override()
    if override == "0":
        return "BLOCKSCALE_NATIVE=0 turns it off"
    path = Path(override) if override else installed_file(_FILE)
    if path is None or not path.exists():
        where = f" ({override} does not exist)" if override else ""
        return f"no native library was built{where}: reinstall from source with a C++17 compiler"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the native library does not load: {error}"
    if library.bs_abi_version() != ABI_VERSION:
        return f"{path} is of another version: reinstall the package"
    best = ISAS[library.bs_best_isa()]
    asked = isa_override() or best
    if asked not in isas_up_to(best):
        return f"BLOCKSCALE_ISA={asked}: this CPU has {', '.join(isas_up_to(best))}"
    return Native(library, path, asked, share_torch_threads(library))
