// The end of a tile: tensor scales, bias, activation, one cast, and stores of whole rows.
//
// A warpgroup has 64 columns of the output, in registers column by column. It brings 32 rows of x at a time, a chunk, to
// shared memory and stores them row by row: 128 bytes at a time of 16-bit numbers. With gate and up, whose columns two
// warpgroups have, each finishes every other chunk and gives the other one the numbers that it needs for its own.
#pragma once
#include "gemm/epilogue.cuh"
#include "gemm/tile_order.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"

namespace bs::gemm {

template <class Shape>
BS_DEVICE int branch_of_warpgroup() {
    return Shape::GATED ? threadIdx.x / 128 : 0;
}

template <class Shape>
struct TileStore {
    using Arguments = typename Shape::Arguments;
    static constexpr int OUT_TILES = Shape::TILES_PER_WARP, ROWS = 32, COLUMNS = 64, CHUNKS = Shape::TILE_M / ROWS;
    static constexpr bool WIDE = Shape::OUT == FLOAT32;
    static constexpr int PITCH = WIDE ? 4 * (COLUMNS + 4) : 2 * COLUMNS;  // bytes; 4 floats more spread the banks
    static constexpr int PART = WIDE ? 4 : 8;                             // numbers of 16 bytes
    static constexpr int PARTS = COLUMNS / PART;                          // of a row

    const Arguments& a;
    u8* staging;  // of this warpgroup
    int thread, warp, lane;  // of the warpgroup, but for the lane
    OutputTile tile;
    float factor;
    float bias[OUT_TILES][2];

    BS_DEVICE TileStore(const Arguments& a, u8* memory)
        : a(a), thread(threadIdx.x % 128), warp(thread / 32), lane(thread % 32) {
        staging = memory + threadIdx.x / 128 * Shape::STAGING_BYTES;
    }

    // Where this warpgroup leaves numbers for the other one, and where it finds them.
    BS_DEVICE float4* exchange(bool others) const {
        const int to = others ? (threadIdx.x < 128 ? Shape::STAGING_BYTES : -Shape::STAGING_BYTES) : 0;
        return reinterpret_cast<float4*>(staging + to + ROWS * PITCH) + thread;
    }

    BS_DEVICE int first_column(int out_tile) const {
        const int before = Shape::GATED ? 0 : threadIdx.x / 128 * OUT_TILES;
        return tile.n_tile * Shape::TILE_N + (before + out_tile) * COLUMNS;
    }

    // Loads what the end of the tile needs, while the last products hide the latency.
    BS_DEVICE void begin(const OutputTile& next) {
        tile = next;
        const auto& weight = a.weight[branch_of_warpgroup<Shape>()];
        factor = Shape::Lift::SUM_LIFT * (weight.tensor_scale ? weight.tensor_scale[tile.group] : 1.0f);
#pragma unroll
        for (int j = 0; j < 2 * OUT_TILES; j++) {
            const int column = first_column(j / 2) + 16 * warp + lane / 4 + j % 2 * 8;
            bias[j / 2][j % 2] =
                weight.bias && column < a.n
                    ? load_number(weight.bias, static_cast<long long>(tile.group) * a.n + column, a.bias_dtype)
                    : 0.0f;
        }
    }

    // A chunk has four m tiles, of which a thread has four sums: columns g and g + 8 of rows 2 t and 2 t + 1.
    using Chunk = float[4][4];

    BS_DEVICE void scale(Chunk& values, int out_tile, int chunk) const {
#pragma unroll
        for (int b = 0; b < 4; b++) {
            float x_scale[2] = {1.0f, 1.0f};
            if (a.x_scale)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int row = tile.row + ROWS * chunk + 8 * b + lane % 4 * 2 + i;
                    if (row < tile.end) x_scale[i] = a.x_scale[row];
                }
#pragma unroll
            for (int j = 0; j < 4; j++) values[b][j] = values[b][j] * factor * x_scale[j % 2] + bias[out_tile][j / 2];
        }
    }

    // Of a pair of chunks the first is finished by the warpgroup that has gate, the second by the one that has up.
    template <class Sums>
    BS_DEVICE void gate(Chunk& values, const Sums& sums, int out_tile, int pair) const {
        const bool has_up = threadIdx.x >= 128;
        Chunk given;
#pragma unroll
        for (int b = 0; b < 4; b++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float first = sums[4 * pair + b][j];
                const float second = pair + 1 < CHUNKS ? sums[(4 * pair + 4 + b) % Shape::M_TILES][j] : 0.0f;
                given[b][j] = has_up ? first : second;
                values[b][j] = has_up ? second : first;
            }
        scale(given, out_tile, pair + !has_up);
        scale(values, out_tile, pair + has_up);
#pragma unroll
        for (int b = 0; b < 4; b++)
            exchange(false)[128 * b] = make_float4(given[b][0], given[b][1], given[b][2], given[b][3]);
        meet();
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const float4 quad = exchange(true)[128 * b];
            const float others[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float own = values[b][j], other = others[j];
                values[b][j] = activate(Shape::ACTIVATION, has_up ? other : own, has_up ? own : other, a.alpha, a.limit);
            }
        }
    }

    BS_DEVICE void stage(const Chunk& values) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 pairs[4];
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const float(&v)[4] = values[2 * half + q];
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

    BS_DEVICE void meet() const {
        if constexpr (Shape::GATED)
            ptx::bar_sync(3, 256);
        else
            ptx::bar_sync(1 + threadIdx.x / 128, 128);
    }

    template <class Sums>
    BS_DEVICE void store(const Sums& sums) const {
#pragma unroll
        for (int out_tile = 0; out_tile < OUT_TILES; out_tile++)
#pragma unroll
            for (int first = 0; first < CHUNKS; first += Shape::BRANCHES) {
                if (tile.row + ROWS * first >= tile.end) continue;  // the same for all
                Chunk values;
                if constexpr (Shape::GATED) {
                    gate(values, sums[out_tile], out_tile, first);
                } else {
#pragma unroll
                    for (int i = 0; i < 16; i++) values[i / 4][i % 4] = sums[out_tile][4 * first + i / 4][i % 4];
                    scale(values, out_tile, first);
                }
                stage(values);
                ptx::bar_sync(1 + threadIdx.x / 128, 128);
                const int chunk = first + branch_of_warpgroup<Shape>();
                if (chunk < CHUNKS) copy_out(out_tile, chunk);
                meet();  // all is read, before the next rows come
            }
    }
};

}  // namespace bs::gemm
