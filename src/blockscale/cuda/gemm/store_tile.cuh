// The end of a tile: tensor scales, bias, activation, one cast, and stores of whole rows.
//
// With gate and up, whose columns two warpgroups have, each finishes every other chunk of rows and gives the other one the
// numbers that it needs for its own.
#pragma once
#include "gemm/staged_rows.cuh"
#include "ptx/cp_async.cuh"

namespace bs::gemm {

template <class Shape>
BS_DEVICE int branch_of_warpgroup() {
    return Shape::GATED ? threadIdx.x / 128 : 0;
}

template <class Shape>
struct TileStore : StagedRows<Shape> {
    using Rows = StagedRows<Shape>;
    using typename Rows::Arguments, typename Rows::Chunk;
    using Rows::a, Rows::staging, Rows::thread, Rows::warp, Rows::lane, Rows::tile;
    using Rows::ROWS, Rows::COLUMNS, Rows::PITCH;
    static constexpr int OUT_TILES = Shape::TILES_PER_WARP, CHUNKS = Shape::TILE_M / ROWS;
    // Chunks go through two places in turn, where shared memory allows it: so a warpgroup meets once for each.
    static constexpr int PLACES = Rows::WIDE ? 1 : 2;

    float* x_scales;  // in shared memory: those of the tile's rows, if there are any
    float factor;
    float bias[OUT_TILES][2];
    u32 place = 0;  // of the next chunk, in bytes

    // `x_scales`: room for TILE_M floats of each warpgroup, if x has scales.
    BS_DEVICE TileStore(const Arguments& a, u8* memory, float* x_scales)
        : Rows(a, memory + threadIdx.x / 128 * Shape::STAGING_BYTES), x_scales(x_scales + threadIdx.x / 128 * Shape::TILE_M) {}

    // Where this warpgroup leaves numbers for the other one, and where it finds them.
    BS_DEVICE float4* exchange(bool others) const {
        const int to = others ? (threadIdx.x < 128 ? Shape::STAGING_BYTES : -Shape::STAGING_BYTES) : 0;
        return reinterpret_cast<float4*>(staging + to + PLACES * ROWS * PITCH) + thread;
    }

    // Of this warpgroup.
    static BS_DEVICE int first_column(const OutputTile& tile) {
        return tile.n_tile * Shape::TILE_N + (Shape::GATED ? 0 : threadIdx.x / 128 * OUT_TILES * COLUMNS);
    }

    // Loads what the end of the tile needs, while the last products hide the latency.
    BS_DEVICE void begin(const OutputTile& next) {
        this->aim(next, first_column(next));
        if (a.x_scale) copy_x_scales();
        const auto& weight = a.weight[branch_of_warpgroup<Shape>()];
        factor = Shape::Lift::SUM_LIFT * (weight.tensor_scale ? weight.tensor_scale[tile.group] : 1.0f);
#pragma unroll
        for (int j = 0; j < 2 * OUT_TILES; j++) {
            const int column = first_column(next) + j / 2 * COLUMNS + 16 * warp + lane / 4 + j % 2 * 8;
            bias[j / 2][j % 2] =
                weight.bias && column < a.n
                    ? load_number(weight.bias, static_cast<long long>(tile.group) * a.n + column, a.bias_dtype)
                    : 0.0f;
        }
    }

    BS_DEVICE void copy_x_scales() const {
        ptx::cp_async_wait<0>();  // of a part of a tile, which is not stored
        for (int row = thread; row < Shape::TILE_M && tile.row + row < tile.end; row += 128)
            ptx::cp_async_float(ptx::shared_address(x_scales + row), a.x_scale + tile.row + row);
        ptx::cp_async_commit();
    }

    BS_DEVICE void scale(Chunk& values, int out_tile, int chunk) const {
        Rows::scale(values, factor, bias[out_tile], [&](int row) { return x_scales[ROWS * chunk + row]; });
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

    BS_DEVICE void meet() const {
        if constexpr (Shape::GATED)
            ptx::bar_sync(3, 256);
        else
            ptx::bar_sync(1 + threadIdx.x / 128, 128);
    }

    // Chunks of which `owns` is true.
    template <class Sums, class Owns>
    BS_DEVICE void store(const Sums& sums, const Owns& owns) {
        if (a.x_scale) {
            ptx::cp_async_wait<0>();
            ptx::bar_sync(1 + threadIdx.x / 128, 128);
        }
#pragma unroll
        for (int out_tile = 0; out_tile < OUT_TILES; out_tile++)
#pragma unroll
            for (int first = 0; first < CHUNKS; first += Shape::BRANCHES) {
                if (tile.row + ROWS * first >= tile.end || !owns(first)) continue;  // the same for all
                Chunk values;
                if constexpr (Shape::GATED) {
                    gate(values, sums[out_tile], out_tile, first);
                } else {
#pragma unroll
                    for (int i = 0; i < 16; i++) values[i / 4][i % 4] = sums[out_tile][4 * first + i / 4][i % 4];
                    scale(values, out_tile, first);
                }
                this->stage(values, place);
                ptx::bar_sync(1 + threadIdx.x / 128, 128);
                const int chunk = first + branch_of_warpgroup<Shape>();
                if (chunk < CHUNKS) this->copy_out(place, chunk, out_tile * COLUMNS);
                if constexpr (PLACES == 1 || Shape::GATED)
                    meet();  // all is read, before the next rows come
                else
                    place = ROWS * PITCH - place;
            }
    }
};

}  // namespace bs::gemm
