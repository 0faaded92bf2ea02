"""A product by cuda/kernels/sm90_gemm.cu."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from struct import pack
from typing import Any

from torch import Tensor

from blockscale.kernels.contract import Parts, Prediction
from blockscale.kernels.matmul.fragments.arguments import (
    CodedXArguments,
    TensorMap,
    WgmmaArguments,
    column_maps,
)
from blockscale.kernels.matmul.fragments.product import FragmentProduct, Shape
from blockscale.kernels.matmul.sm90_gemm.build import gemm_build
from blockscale.kernels.matmul.sm90_gemm.config import TILE_K, Config
from blockscale.kernels.matmul.sm90_gemm.cost import cost
from blockscale.kernels.matmul.sm90_gemm.shared_memory import (
    X_SCALE_BYTES,
    scale_groups_across,
    shared_bytes,
)
from blockscale.kernels.matmul.sm90_gemm.workspace import workspace
from blockscale.runtime.cuda import Build, tensor_map


class Product(FragmentProduct):
    _config: Config

    def _shape(self) -> Shape:
        problem, config = self._problem, self._config
        return Shape(
            CodedXArguments if config.decodes_x else WgmmaArguments,
            (config.clusters(problem), config.ctas, 1),
            config.threads,
            shared_bytes(config, problem),
            config.ctas,
            x_box=(config.tile_m // config.cluster, 1),
            tiles_of_cta=config.tile_n(problem) // 16,
            tile_k=TILE_K,
        )

    def _fixed(self, weights: Sequence[Parts]) -> Any:
        arguments = super()._fixed(weights)
        arguments.band = self._config.band(self._problem)
        arguments.split = self._config.split
        return arguments

    def _weight_maps(self, part: Parts) -> tuple[bytes, bytes]:
        problem, config = self._problem, self._config
        if not config.transposed:
            return super()._weight_maps(part)
        groups = scale_groups_across(config, problem.w_kind.format)
        return column_maps(problem, part, config.weight_rows // 64, groups)

    @property
    def _decodes_x(self) -> bool:
        return self._config.decodes_x

    def _add_scales(self, arguments: Any, x: Parts) -> tuple[Tensor, Tensor | None, Tensor | None]:
        codes, row_scale, scale = super()._add_scales(arguments, x)
        if scale is not None:
            scale_map = self._bytes_map(scale.data_ptr(), scale.shape[1], X_SCALE_BYTES)
            arguments.x_scale_map = TensorMap.from_buffer_copy(scale_map)
        return codes, row_scale, scale

    def _map(self, address: int, stride: int) -> bytes:
        if not self._config.decodes_x:
            return super()._map(address, stride)
        bits = self._problem.x_kind.format.element.bits
        return self._bytes_map(address, stride, TILE_K * bits // 8)

    def _bytes_map(self, address: int, row: int, of_stage: int) -> bytes:
        """Of rows of x with so many bytes, of which a stage takes so many."""
        sizes, box = (row, self._problem.rows), (of_stage, self._config.tile_m)
        return tensor_map(self._device.index, address, "uint8", sizes, (row,), box)

    def _workspace(self, stream: int) -> bytes:
        partial, arrivals = workspace(self._device, stream, *self._workspace_sizes)
        return pack("PP", partial.data_ptr(), arrivals.data_ptr())

    @cached_property
    def _workspace_sizes(self) -> tuple[int, int]:
        """Of sums, and of flags that say that they are there."""
        problem, config = self._problem, self._config
        flags = config.clusters(problem) * config.cluster * config.warpgroups
        return config.partial_floats(problem), flags

    @property
    def _has_workspace(self) -> bool:
        return self._config.split

    def _build(self, symmetric: bool) -> Build:
        return gemm_build(self._problem, self._config, symmetric)

    @property
    def predicted(self) -> Prediction | None:
        return cost(self._problem, self._config)
