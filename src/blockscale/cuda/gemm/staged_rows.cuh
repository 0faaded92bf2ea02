// Results of a warpgroup on their way to memory: column by column in registers, whole rows from shared memory on.
//
// A warpgroup has 64 columns of the output, 16 of each warp. It brings 32 rows of x at a time, a chunk, to shared memory
// and stores them row by row: 128 bytes at a time of 16-bit numbers.
#pragma once
#include "gemm/epilogue.cuh"
#include "gemm/tile_order.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"

namespace bs::gemm {

template <class Shape>
struct StagedRows {
    using Arguments = typename Shape::Arguments;
    static constexpr int ROWS = 32, COLUMNS = 64;
    static constexpr bool WIDE = Shape::OUT == FLOAT32;
    static constexpr int PITCH = WIDE ? 4 * (COLUMNS + 4) : 2 * COLUMNS;  // bytes; 4 floats more spread the banks
    static constexpr int PART = WIDE ? 4 : 8;                             // numbers of 16 bytes
    static constexpr int PARTS = COLUMNS / PART;                          // of a row

    const Arguments& a;
    u8* staging;  // of this warpgroup
    int thread, warp, lane;  // of the warpgroup, but for the lane
    OutputTile tile;

    BS_DEVICE StagedRows(const Arguments& a, u8* staging)
        : a(a), staging(staging), thread(threadIdx.x % 128), warp(thread / 32), lane(thread % 32) {}

    // A chunk has four m tiles, of which a thread has four sums: columns g and g + 8 of rows 2 t and 2 t + 1.
    using Chunk = float[4][4];

    // `bias`: of columns g and g + 8. `x_scales`: of the tile's rows, if a.x_scale has any.
    BS_DEVICE void scale(Chunk& values, float factor, const float (&bias)[2], int chunk, const float* x_scales) const {
#pragma unroll
        for (int b = 0; b < 4; b++) {
            float x_scale[2] = {1.0f, 1.0f};
            if (a.x_scale)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int row = ROWS * chunk + 8 * b + lane % 4 * 2 + i;
                    if (tile.row + row < tile.end) x_scale[i] = x_scales[row];
                }
#pragma unroll
            for (int j = 0; j < 4; j++) values[b][j] = values[b][j] * factor * x_scale[j % 2] + bias[j / 2];
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

    // Of which `first_column` is the first.
    BS_DEVICE void copy_out(int first_column, int chunk) const {
        constexpr int SIZE = WIDE ? 4 : 2;
        const int column = first_column + thread % PARTS * PART;
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
};

}  // namespace bs::gemm
