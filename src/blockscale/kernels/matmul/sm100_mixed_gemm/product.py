"""A product by cuda/kernels/sm100_mixed_gemm.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockscale.kernels.contract import Parts, Prediction
from blockscale.kernels.matmul.fragments.arguments import WgmmaArguments
from blockscale.kernels.matmul.fragments.product import FragmentProduct, Shape
from blockscale.kernels.matmul.sm100_mixed_gemm.build import gemm_build
from blockscale.kernels.matmul.sm100_mixed_gemm.config import THREADS, TILE_K, Config
from blockscale.kernels.matmul.sm100_mixed_gemm.cost import cost
from blockscale.kernels.matmul.sm100_mixed_gemm.shared_memory import shared_bytes
from blockscale.layouts import TensorMemory
from blockscale.runtime.cuda import Build


class Product(FragmentProduct):
    _config: Config

    def _shape(self) -> Shape:
        problem, config = self._problem, self._config
        return Shape(
            WgmmaArguments,
            (config.clusters(problem), config.ctas, 1),
            THREADS,
            shared_bytes(config, problem),
            config.ctas,
            x_box=(config.tile_m // config.ctas, 1),
            tiles_of_cta=config.tile_n(problem) // 16,
            tile_k=TILE_K,
        )

    def _fixed(self, weights: Sequence[Parts]) -> Any:
        arguments = super()._fixed(weights)
        arguments.band = self._config.band(self._problem)
        return arguments

    def _build(self, symmetric: bool) -> Build:
        return gemm_build(self._problem, self._config, symmetric)

    @property
    def tensor_memory(self) -> TensorMemory:
        return self._config.columns

    @property
    def predicted(self) -> Prediction | None:
        return cost(self._problem, self._config)
