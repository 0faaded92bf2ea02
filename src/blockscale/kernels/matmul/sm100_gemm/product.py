"""A product by cuda/kernels/sm100_gemm.cu."""

from __future__ import annotations

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.block_scaled.arguments import Boxes
from blockscale.kernels.matmul.block_scaled.product import BlockScaledProduct, Shape
from blockscale.kernels.matmul.sm100_gemm.build import gemm_build
from blockscale.kernels.matmul.sm100_gemm.config import CTA_ROWS, THREADS, Config
from blockscale.kernels.matmul.sm100_gemm.cost import cost
from blockscale.kernels.matmul.sm100_gemm.shared_memory import shared_bytes
from blockscale.layouts import ScaledMemory
from blockscale.runtime.cuda import Build


class Product(BlockScaledProduct):
    _config: Config

    def _shape(self) -> Shape:
        problem, config = self._problem, self._config
        boxes = Boxes(
            x_rows=CTA_ROWS,
            w_rows=config.w_box_rows(problem),
            x_atoms=1,
            w_atoms=config.tile_n(problem) // 128,
            scale_groups=config.scale_groups(self._operands),
        )
        return Shape(
            (config.clusters(problem), config.ctas, 1),
            THREADS,
            shared_bytes(config, problem),
            config.ctas,
            boxes,
            config.band(problem),
        )

    def _build(self) -> Build:
        return gemm_build(self._problem, self._config)

    @property
    def tensor_memory(self) -> ScaledMemory:
        return self._config.columns(self._operands)

    @property
    def predicted(self) -> Prediction | None:
        return cost(self._problem, self._config)
