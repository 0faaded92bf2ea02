// The end of a tile: tensor scales, bias, activation, one cast, and stores of whole rows.
//
// A warpgroup has 64 columns of the output, in registers column by column. It brings 32 rows of x at a time to shared
// memory and stores them row by row: 128 bytes at a time of 16-bit numbers.
#pragma once
#include "gemm/epilogue.cuh"
#include "gemm/tile_order.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"

namespace bs::gemm {

template <class Shape>
struct TileStore {
    using Arguments = typename Shape::Arguments;
    static constexpr int BRANCHES = Shape::BRANCHES, OUT_TILES = Shape::OUT_TILES, ROWS = 32, COLUMNS = 64;
    static constexpr bool WIDE = Shape::OUT == FLOAT32;
    static constexpr int PITCH = WIDE ? 4 * (COLUMNS + 4) : 2 * COLUMNS;  // bytes; 4 floats more spread the banks
    static constexpr int PART = WIDE ? 4 : 8;                             // numbers of 16 bytes
    static constexpr int PARTS = COLUMNS / PART;                          // of a row

    const Arguments& a;
    u8* staging;  // of this warpgroup
    int thread, warp, lane;  // of the warpgroup, but for the lane
    OutputTile tile;
    float factor[BRANCHES];
    float bias[BRANCHES][OUT_TILES][2];

    BS_DEVICE TileStore(const Arguments& a, u8* memory)
        : a(a), thread(threadIdx.x % 128), warp(thread / 32), lane(thread % 32) {
        staging = memory + threadIdx.x / 128 * Shape::STAGING_BYTES;
    }

    BS_DEVICE int first_column(int out_tile) const {
        return tile.n_tile * Shape::TILE_N + (threadIdx.x / 128 * OUT_TILES + out_tile) * COLUMNS;
    }

    // Loads what the end of the tile needs, while the last products hide the latency.
    BS_DEVICE void begin(const OutputTile& next) {
        tile = next;
#pragma unroll
        for (int i = 0; i < BRANCHES; i++) {
            const auto& weight = a.weight[i];
            factor[i] = Shape::Lift::SUM_LIFT * (weight.tensor_scale ? weight.tensor_scale[tile.group] : 1.0f);
#pragma unroll
            for (int j = 0; j < 2 * OUT_TILES; j++) {
                const int column = first_column(j / 2) + 16 * warp + lane / 4 + j % 2 * 8;
                bias[i][j / 2][j % 2] =
                    weight.bias && column < a.n
                        ? load_number(weight.bias, static_cast<long long>(tile.group) * a.n + column, a.bias_dtype)
                        : 0.0f;
            }
        }
    }

    // The four results of m tile `b`: columns g and g + 8 of rows 2 t and 2 t + 1.
    template <class Sums>
    BS_DEVICE void finish(float (&value)[4], const Sums& sums, int out_tile, int b) const {
        float x_scale[2] = {1.0f, 1.0f};
        if (a.x_scale)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = tile.row + 8 * b + lane % 4 * 2 + i;
                if (row < tile.end) x_scale[i] = a.x_scale[row];
            }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float y[BRANCHES];
#pragma unroll
            for (int i = 0; i < BRANCHES; i++)
                y[i] = sums[out_tile * BRANCHES + i][b][j] * factor[i] * x_scale[j % 2] + bias[i][out_tile][j / 2];
            value[j] = Shape::GATED ? activate(Shape::ACTIVATION, y[0], y[BRANCHES - 1], a.alpha, a.limit) : y[0];
        }
    }

    template <class Sums>
    BS_DEVICE void stage(const Sums& sums, int out_tile, int chunk) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 pairs[4];
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const int b = 4 * chunk + 2 * half + q;
                float v[4];
                finish(v, sums, out_tile, b);
                if constexpr (WIDE) {
                    float* to = reinterpret_cast<float*>(staging) + 16 * warp + lane / 4;
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        to[(16 * half + 8 * q + lane % 4 * 2 + j % 2) * (PITCH / 4) + j / 2 * 8] = v[j];
                } else {
                    using Pair = typename Either<Shape::OUT == BFLOAT16, ptx::BFloat16x2, ptx::Float16x2>::Type;
                    pairs[2 * q] = Pair::from_floats(v[0], v[1]);
                    pairs[2 * q + 1] = Pair::from_floats(v[2], v[3]);
                }
            }
            if constexpr (!WIDE) {
                const int row = 16 * half + lane / 16 * 8 + lane % 8, part = 2 * warp + lane / 8 % 2;
                ptx::stmatrix_x4_transposed(ptx::shared_address(staging) + row * PITCH + 16 * (part ^ row % 8), pairs);
            }
        }
    }

    BS_DEVICE void copy_out(int out_tile, int chunk) const {
        constexpr int SIZE = WIDE ? 4 : 2;
        const int column = first_column(out_tile) + thread % PARTS * PART;
        const bool whole = column + PART <= a.n && a.out_stride % PART == 0 && reinterpret_cast<u64>(a.out) % 16 == 0;
#pragma unroll
        for (int i = 0; i < ROWS * PARTS / 128; i++) {
            const int inside = i * (128 / PARTS) + thread / PARTS, row = tile.row + ROWS * chunk + inside;
            const int part = WIDE ? thread % PARTS : thread % PARTS ^ inside % 8;
            const uint4 numbers = *reinterpret_cast<const uint4*>(staging + inside * PITCH + 16 * part);
            u8* to = static_cast<u8*>(a.out) + (row * a.out_stride + column) * SIZE;
            if (row >= tile.end) continue;
            if (whole) {
                *reinterpret_cast<uint4*>(to) = numbers;
                continue;
            }
            const u32 words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
            for (int j = 0; j < PART; j++)
                if (column + j < a.n) {
                    if constexpr (WIDE)
                        reinterpret_cast<u32*>(to)[j] = words[j];
                    else
                        reinterpret_cast<u16*>(to)[j] = static_cast<u16>(words[j / 2] >> (16 * (j % 2)));
                }
        }
    }

    template <class Sums>
    BS_DEVICE void store(const Sums& sums) const {
        const int barrier = 1 + threadIdx.x / 128;
#pragma unroll
        for (int i = 0; i < OUT_TILES * (Shape::TILE_M / ROWS); i++) {
            const int out_tile = i / (Shape::TILE_M / ROWS), chunk = i % (Shape::TILE_M / ROWS);
            if (tile.row + ROWS * chunk >= tile.end) continue;  // the same for all
            stage(sums, out_tile, chunk);
            ptx::bar_sync(barrier, 128);
            copy_out(out_tile, chunk);
            ptx::bar_sync(barrier, 128);  // read, before the next rows come
        }
    }
};

}  // namespace bs::gemm
