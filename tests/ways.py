"""The ways in which this machine can compute a product: kernel, instruction set, algorithm."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

import blockscale as bs
from blockscale.kernels import KERNELS
from blockscale.ops import choose
from blockscale.runtime import load_native, native

_loaded = load_native()
MISSING = f"no native library: {_loaded}" if isinstance(_loaded, str) else ""
ISAS = () if isinstance(_loaded, str) else native.isas_up_to(_loaded.isa)


@dataclass(frozen=True)
class Way:
    """A kernel on canonical weights; or, with an instruction set and an algorithm, a native one on
    prepared weights."""

    name: str
    isa: str = ""
    algorithm: str = ""

    def __str__(self):
        return "-".join(filter(None, (self.name, self.isa, self.algorithm)))

    def weight(self, values, fmt, **options):
        return self.place(bs.quantize(values, fmt, **options))

    def place(self, q):
        return q.prepare() if self.isa else q

    def rounds_weights(self, fmt, dtype):
        """Whether bfloat16, which cannot hold these weights, may be multiplied: of tiles with
        their scales, of `bfmmla` without."""
        if self.name != "cpu" or dtype != torch.bfloat16:
            return False
        tiles = "amx" in ISAS and self.algorithm in ("", "amx")
        short = "bf16" in ISAS and self.algorithm in ("", "bfmmla")
        return (tiles and fmt.scale.bits == 32) or ((tiles or short) and fmt.is_codebook)

    def cuts_codebooks(self, fmt):
        """Whether the values of a codebook may be multiplied as slices, which round them by what
        the bound of float32 sums leaves to them: csrc/products/slice_table.h."""
        sliced = "dotprod" in ISAS and self.algorithm in ("", "slices")
        return self.name == "cpu" and sliced and fmt.is_codebook

    @contextmanager
    def only(self):
        """No other kernel but, where this one refuses, the reference; the algorithm where legal."""
        with pytest.MonkeyPatch.context() as patch:
            for verb, kernels in KERNELS.items():
                kept = [k for k in kernels if k.NAME in (self.name, "reference")]
                if self.algorithm and "matmul" in verb:
                    kept = [Preferring(self.algorithm, k) if k.NAME == "cpu" else k for k in kept]
                patch.setitem(KERNELS, verb, tuple(kept))
            if self.isa:
                patch.setenv("BLOCKSCALE_ISA", self.isa)
            forget()
            yield self
        forget()


class Preferring:
    """The native products with one algorithm before the others."""

    def __init__(self, algorithm, kernel):
        self.NAME, self.algorithm = kernel.NAME, algorithm
        self.reads, self.refuses, self.bind = kernel.reads, kernel.refuses, kernel.bind
        self.every = kernel.configs

    def configs(self, problem):
        return sorted(self.every(problem), key=lambda config: config.algorithm != self.algorithm)


def forget():
    """What was decided under another environment."""
    load_native.cache_clear()
    choose.cache_clear()


OF_BFLOAT16 = ("amx", "bfmmla")  # algorithms that multiply nothing else
# What a level adds. All else that runs at it is the code of those before.
ADDED = {"amx": ("amx",), "dotprod": ("slices",), "i8mm": (), "bf16": ("bfmmla",)}
NATIVE = [
    Way("cpu", isa, algorithm) for isa in ISAS for algorithm in ADDED.get(isa, ("stream", "gemm"))
]
INT8 = [Way("cpu", isa, "int8") for isa in ISAS]
EVERY = [Way("cpu"), Way("reference"), *NATIVE]
