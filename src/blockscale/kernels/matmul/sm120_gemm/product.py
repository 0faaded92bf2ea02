"""A product by cuda/kernels/sm120_gemm.cu."""

from __future__ import annotations

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.block_scaled.arguments import Boxes
from blockscale.kernels.matmul.block_scaled.product import BlockScaledProduct, Shape
from blockscale.kernels.matmul.sm120_gemm.build import gemm_build
from blockscale.kernels.matmul.sm120_gemm.config import TILE_M, Config
from blockscale.kernels.matmul.sm120_gemm.cost import cost
from blockscale.kernels.matmul.sm120_gemm.shared_memory import scale_groups, shared_bytes
from blockscale.runtime.cuda import Build


class Product(BlockScaledProduct):
    _config: Config

    def _shape(self) -> Shape:
        problem, config = self._problem, self._config
        boxes = Boxes(
            x_rows=TILE_M,
            w_rows=config.tile_n(problem),
            x_atoms=1,
            w_atoms=1,
            scale_groups=scale_groups(self._operands),
        )
        grid = config.ctas(problem), 1, 1
        shared = shared_bytes(config, problem)
        return Shape(grid, config.threads, shared, 1, boxes, config.band(problem))

    def _build(self) -> Build:
        return gemm_build(self._problem, self._config)

    @property
    def predicted(self) -> Prediction | None:
        return cost(self._problem, self._config)
