// The tiles of a warp: decoded weights, and the sums of their products.
#pragma once
#include "gemm/warp_weights.cuh"

namespace bs::gemm {

template <class Shape, class Ring>
struct WarpTiles : WarpWeights<Shape, Ring> {
    using Weights = WarpWeights<Shape, Ring>;
    using Weights::Weights, Weights::lane, Weights::n_warp, Weights::k_warp, Weights::TILES, Weights::BITS;
    using Weights::UNITS_PER_GROUP;
    using Lift = typename Shape::Lift;

    float sums[TILES][Shape::M_TILES][Shape::SUMS];

    BS_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int b = 0; b < Shape::M_TILES; b++)
#pragma unroll
                for (int j = 0; j < Shape::SUMS; j++) sums[i][b][j] = 0.0f;
    }

    // To shared memory: [k_warp][branch][row of x][row of w], float32.
    BS_DEVICE void leave(float* out) const {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const int first = 16 * (n_warp * (TILES / Shape::BRANCHES) + i / Shape::BRANCHES);  // row of w
            float* base = out + ((k_warp * Shape::BRANCHES + i % Shape::BRANCHES) * Shape::TILE_M) * Shape::SUM_PITCH +
                          first + g;
#pragma unroll
            for (int b = 0; b < Shape::M_TILES; b++)
#pragma unroll
                for (int j = 0; j < Shape::SUMS; j++) {
                    int m = Shape::TILE_M == 1 ? 0 : (8 * b + 2 * t + j % 2) % Shape::TILE_M;
                    int below = Shape::TILE_M == 1 ? 8 * j : 8 * (j / 2);
                    if (Shape::TILE_M >= 8 || 2 * t < Shape::TILE_M || Shape::TILE_M == 1)
                        base[m * Shape::SUM_PITCH + below] = sums[i][b][j] * Lift::SUM_LIFT;
                }
        }
    }
};

}  // namespace bs::gemm
