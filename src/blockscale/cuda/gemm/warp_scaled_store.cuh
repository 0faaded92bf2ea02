// The end of a tile of mma.sync: tensor scales, bias, activation, one cast, and stores of two neighbours at a time.
#pragma once
#include "gemm/epilogue.cuh"
#include "gemm/warp_scaled_mainloop.cuh"

namespace bs::gemm {

template <class Shape>
struct WarpScaledStore {
    static constexpr int BRANCHES = Shape::BRANCHES;

    const typename Shape::Arguments& a;
    const WarpScaledMainloop<Shape>& mainloop;
    OutputTile tile;

    BS_DEVICE float bias(int branch, int column) const {
        const void* numbers = a.weight[branch].bias;
        if (!numbers || column >= a.n) return 0.0f;
        return load_number(numbers, static_cast<long long>(tile.group) * a.n + column, a.bias_dtype);
    }

    BS_DEVICE void store_pair(int row, int column, const float (&value)[2]) const {
        const long long at = row * a.out_stride + column;
        constexpr int SIZE = Shape::OUT == FLOAT32 ? 4 : 2;
        if (column + 1 < a.n && (reinterpret_cast<u64>(a.out) + at * SIZE) % (2 * SIZE) == 0) {
            u8* to = static_cast<u8*>(a.out) + at * SIZE;
            if constexpr (Shape::OUT == FLOAT32)
                *reinterpret_cast<uint2*>(to) = make_uint2(__float_as_uint(value[0]), __float_as_uint(value[1]));
            else if constexpr (Shape::OUT == BFLOAT16)
                *reinterpret_cast<u32*>(to) = ptx::BFloat16x2::from_floats(value[0], value[1]);
            else
                *reinterpret_cast<u32*>(to) = ptx::Float16x2::from_floats(value[0], value[1]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (column + i < a.n) store_number(a.out, at + i, value[i], Shape::OUT);
    }

    // Columns 2 t and 2 t + 1 of tile n, of one row.
    BS_DEVICE void finish(float (&value)[2], const float (&factor)[BRANCHES], int m, int n, int half, int column) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float y[BRANCHES];
#pragma unroll
            for (int b = 0; b < BRANCHES; b++)
                y[b] = mainloop.sums[m][n + b * Shape::BRANCH_TILES][2 * half + i] * factor[b] + bias(b, column + i);
            value[i] = Shape::GATED ? activate(Shape::ACTIVATION, y[0], y[BRANCHES - 1], a.alpha, a.limit) : y[0];
        }
    }

    BS_DEVICE void run() const {
        const int lane = mainloop.lane, first = tile.n_tile * Shape::TILE_N + lane % 4 * 2;
        float weight[BRANCHES];
#pragma unroll
        for (int b = 0; b < BRANCHES; b++)
            weight[b] = a.weight[b].tensor_scale ? a.weight[b].tensor_scale[tile.group] : 1.0f;
#pragma unroll
        for (int i = 0; i < 2 * Shape::M_TILES; i++) {
            const int m = i / 2, half = i % 2;
            const int row = tile.row + mainloop.m_warp * Shape::WARP_M + 16 * m + 8 * half + lane / 4;
            if (row < tile.first || row >= tile.end) continue;
            const float x_scale = a.x_scale ? a.x_scale[row] : 1.0f;
            float factor[BRANCHES];
#pragma unroll
            for (int b = 0; b < BRANCHES; b++) factor[b] = x_scale * weight[b];
#pragma unroll
            for (int n = 0; n < Shape::BRANCH_TILES; n++) {
                const int column = first + mainloop.w_row(n);
                float value[2];
                finish(value, factor, m, n, half, column);
                store_pair(row, column, value);
            }
        }
    }
};

}  // namespace bs::gemm
