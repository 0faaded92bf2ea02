// Results of a warpgroup on their way to memory: column by column in registers, whole rows from shared memory on.
//
// A warpgroup has 64 columns of the output, 16 of each warp. It brings 32 rows of x at a time, a chunk, to shared memory
// and stores them row by row: 128 bytes at a time of 16-bit numbers.
#pragma once
#include "gemm/epilogue.cuh"
#include "gemm/tile_order.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"

namespace bs::gemm {

template <class Shape>
struct StagedRows {
    using Arguments = typename Shape::Arguments;
    static constexpr int ROWS = 32, COLUMNS = 64;
    static constexpr bool WIDE = Shape::OUT == FLOAT32;
    static constexpr int SIZE = WIDE ? 4 : 2;                             // bytes of a number
    static constexpr int PITCH = WIDE ? 4 * (COLUMNS + 4) : 2 * COLUMNS;  // bytes; 4 floats more spread the banks
    static constexpr int PART = 16 / SIZE;                                // numbers of 16 bytes
    static constexpr int PARTS = COLUMNS / PART;                          // of a row
    static constexpr int AT_ONCE = 128 / PARTS;                           // rows that a warpgroup stores at a time

    const Arguments& a;
    u8* staging;  // of this warpgroup
    int thread, warp, lane;  // of the warpgroup, but for the lane
    OutputTile tile;
    int column;  // of the output: the first of this thread's part of a row
    // Found out once for a tile, and held: to compute them again for each chunk took longer than storing it.
    u32 write_at, read_at;  // in `staging`: where this thread writes and reads 16-bit numbers
    long long at;           // bytes from the output's first to this thread's part of the first row that it has
    long long pitch;        // bytes from one row of the output to the next
    int rows_left;          // of the tile's group, from there on
    int columns_left;       // of the output, from the warpgroup's first on; 0 where 16 bytes may not be stored at a time

    BS_DEVICE StagedRows(const Arguments& a, u8* staging)
        : a(a), staging(staging), thread(threadIdx.x % 128), warp(thread / 32), lane(thread % 32) {}

    // Where results go. `first_column`: of the output, the first one of this warpgroup.
    BS_DEVICE void aim(const OutputTile& next, int first_column) {
        tile = next;
        const int row = thread / PARTS, written = lane / 16 * 8 + lane % 8, part = 2 * warp + lane / 8 % 2;
        write_at = ptx::shared_address(staging) + written * PITCH + 16 * (part ^ written % 8);
        read_at = ptx::shared_address(staging) + row * PITCH + 16 * (WIDE ? thread % PARTS : thread % PARTS ^ row % 8);
        pitch = a.out_stride * SIZE;
        column = first_column + thread % PARTS * PART;
        at = (tile.row + row) * pitch + column * SIZE;
        rows_left = tile.end - tile.row - row;
        columns_left = a.out_stride % PART == 0 && reinterpret_cast<u64>(a.out) % 16 == 0 ? a.n - first_column : 0;
        ptx::hold(write_at), ptx::hold(read_at), ptx::hold(pitch), ptx::hold(at), ptx::hold(rows_left), ptx::hold(columns_left);
    }

    // A chunk has four m tiles, of which a thread has four sums: columns g and g + 8 of rows 2 t and 2 t + 1.
    using Chunk = float[4][4];

    // `bias`: of columns g and g + 8. `x_scale_of`: of a row of the chunk, if a.x_scale has any.
    template <class XScale>
    BS_DEVICE void scale(Chunk& values, float factor, const float (&bias)[2], const XScale& x_scale_of) const {
        if (a.x_scale) {
#pragma unroll
            for (int b = 0; b < 4; b++) {
                const float x_scale[2] = {x_scale_of(8 * b + lane % 4 * 2), x_scale_of(8 * b + lane % 4 * 2 + 1)};
#pragma unroll
                for (int j = 0; j < 4; j++) values[b][j] = fmaf(values[b][j] * factor, x_scale[j % 2], bias[j / 2]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) values[i / 4][i % 4] = fmaf(values[i / 4][i % 4], factor, bias[i % 4 / 2]);
        }
    }

    // To shared memory, `place` bytes behind the first.
    BS_DEVICE void stage(const Chunk& values, u32 place) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 pairs[4];
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const float(&v)[4] = values[2 * half + q];
                if constexpr (WIDE) {
                    float* to = reinterpret_cast<float*>(staging + place) + 16 * warp + lane / 4;
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        to[(16 * half + 8 * q + lane % 4 * 2 + j % 2) * (PITCH / 4) + j / 2 * 8] = v[j];
                } else {
                    using Pair = typename Either<Shape::OUT == BFLOAT16, ptx::BFloat16x2, ptx::Float16x2>::Type;
                    pairs[2 * q] = Pair::from_floats(v[0], v[1]);
                    pairs[2 * q + 1] = Pair::from_floats(v[2], v[3]);
                }
            }
            if constexpr (!WIDE) ptx::stmatrix_x4_transposed(write_at + place + 16 * PITCH * half, pairs);
        }
    }

    // From there to the output, `right` columns from the first.
    BS_DEVICE void copy_out(u32 place, int chunk, int right = 0) const {
        if (columns_left < right + COLUMNS) return copy_some(place, chunk, right);
        u8* to = static_cast<u8*>(a.out) + at + ROWS * chunk * pitch + right * SIZE;
#pragma unroll
        for (int i = 0; i < ROWS; i += AT_ONCE) {
            u32 words[4];
            ptx::load_shared(words, read_at + place + i * PITCH);
            if (ROWS * chunk + i < rows_left) *reinterpret_cast<uint4*>(to + i * pitch) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }

private:
    // One number at a time: where the output ends before these columns do, or its rows begin anywhere.
    BS_DEVICE void copy_some(u32 place, int chunk, int right) const {
        constexpr int GRAINS = 4 / SIZE;  // numbers of a word
#pragma unroll 1
        for (int i = 0; i < ROWS && ROWS * chunk + i < rows_left; i += AT_ONCE)
#pragma unroll 1
            for (int j = 0; j < min(PART, a.n - column - right); j++) {
                u32 word[1];
                ptx::load_shared(word, read_at + place + i * PITCH + j / GRAINS * 4);
                u8* to = static_cast<u8*>(a.out) + at + (ROWS * chunk + i) * pitch + (right + j) * SIZE;
                if constexpr (WIDE)
                    *reinterpret_cast<u32*>(to) = word[0];
                else
                    *reinterpret_cast<u16*>(to) = static_cast<u16>(word[0] >> 16 * (j % 2));
            }
    }
};

}  // namespace bs::gemm
