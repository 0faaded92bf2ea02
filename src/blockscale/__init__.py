"""blockscale: the linear layers of language models at 2 to 8 bits a weight, on any machine.

import blockscale as bs

q = bs.quantize(w, bs.NVFP4)     # w [n, k] -> QTensor
y = bs.matmul(x, q)              # x @ w.T
print(bs.explain(x, q))          # which kernel ran, and why
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from blockscale.public import *  # noqa: F403
    from blockscale.public import __all__ as __all__
else:
    # torch takes seconds to import. Whoever asks for the version, for the formats alone or for the
    # help of a command does without it.
    from importlib import import_module
    from importlib.util import find_spec

    def __getattr__(name: str) -> object:
        """A folder of the library; or a public name, the first of which brings all of them."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        public = import_module("blockscale.public")
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("blockscale.public").__all__})
