// Four warps that read finished tiles out of TMEM: tensor scales, bias, activation, one cast, and stores of whole rows.
//
// A lane of TMEM is a row of w, which is a column of the output; a column of TMEM is a row of x. The warp with lanes
// 32 w .. 32 w + 31 has two halves of 16 columns of the output: 16 w and 64 + 16 w of the CTA's. Of gate and up, both
// halves belong to the same columns, so that a thread finds the numbers of gate and of up in the same registers of its two
// halves.
#pragma once
#include "gemm/accumulators.cuh"
#include "gemm/staged_rows.cuh"
#include "ptx/tcgen05_decoded.cuh"

namespace bs::gemm {

template <class Shape>
struct MixedEpilogue : StagedRows<Shape> {
    using Rows = StagedRows<Shape>;
    using typename Rows::Arguments, typename Rows::Chunk;
    using Rows::a, Rows::warp, Rows::lane, Rows::tile, Rows::ROWS, Rows::COLUMNS;
    static constexpr int HALVES = 2, CHUNKS = Shape::MMA_N / ROWS, BARRIER = 1, THREADS = 128;

    const Accumulators<Shape>& accumulators;
    AccumulatorTurn<Shape> from;
    float factor[HALVES], bias[HALVES][2];

    BS_DEVICE MixedEpilogue(const Arguments& a, const Accumulators<Shape>& accumulators, u8* staging)
        : Rows(a, staging), accumulators(accumulators) {}

    static BS_DEVICE int column_of(int half) { return Shape::GATED ? 0 : half * COLUMNS; }  // of the tile

    // What the tile needs of memory, while the products run.
    BS_DEVICE void begin(const OutputTile& next) {
        this->aim(next, next.n_tile * Shape::TILE_N);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const auto& weight = a.weight[Shape::GATED ? half : 0];
            factor[half] = Shape::Lift::SUM_LIFT * (weight.tensor_scale ? weight.tensor_scale[tile.group] : 1.0f);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int column = tile.n_tile * Shape::TILE_N + column_of(half) + 16 * warp + lane / 4 + j * 8;
                const long long at = static_cast<long long>(tile.group) * a.n + column;
                bias[half][j] = weight.bias && column < a.n ? load_number(weight.bias, at, a.bias_dtype) : 0.0f;
            }
        }
    }

    // The columns of this warp's lanes that are left to read may be overwritten when all warps have arrived.
    BS_DEVICE void release(u32 barrier) const {
        ptx::tcgen05::fence_before_thread_sync();
        __syncwarp();
        if (lane == 0) Accumulators<Shape>::arrive(barrier);
    }

    BS_DEVICE void store(const Chunk& values, int half, int chunk) const {
        this->stage(values, 0);
        ptx::bar_sync(BARRIER, THREADS);
        this->copy_out(0, chunk, column_of(half));
        ptx::bar_sync(BARRIER, THREADS);  // all is read, before the next rows come
    }

    BS_DEVICE void finish(const u32 (&sums)[HALVES][16], int chunk) const {
        Chunk values[HALVES];
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
#pragma unroll
            for (int i = 0; i < 16; i++) values[half][i / 4][i % 4] = __uint_as_float(sums[half][i]);
            this->scale(values[half], factor[half], bias[half], [&](int row) {
                const int of_x = tile.row + ROWS * chunk + row;
                return of_x < tile.end ? a.x_scale[of_x] : 1.0f;
            });
            if constexpr (!Shape::GATED) store(values[half], half, chunk);
        }
        if constexpr (Shape::GATED) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float& value = values[0][i / 4][i % 4];
                value = activate(Shape::ACTIVATION, value, values[1][i / 4][i % 4], a.alpha, a.limit);
            }
            store(values[0], 0, chunk);
        }
    }

    // Columns that two accumulators share are read first: the last ones of the first, the first ones of the second.
    BS_DEVICE void drain() {
        constexpr int SHARED_STEPS = Shape::SHARED_COLUMNS / ROWS;
        const u32 columns = accumulators.columns(from.slot) + ptx::tcgen05::lane_bits(32 * warp);
        ptx::mbarrier_wait(accumulators.full(from.slot), from.parity);
        ptx::tcgen05::fence_after_thread_sync();
#pragma unroll 1
        for (int step = 0; step < CHUNKS; step++) {
            const int chunk = from.slot == 1 ? step : CHUNKS - 1 - step;
            u32 sums[HALVES][16];
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                ptx::tcgen05::ld_16x256b(sums[half], columns + ptx::tcgen05::lane_bits(16 * half) + ROWS * chunk);
#pragma unroll
            for (int half = 0; half < HALVES; half++) ptx::tcgen05::wait_ld(sums[half]);
            if (Accumulators<Shape>::SHARES && step == SHARED_STEPS - 1) release(accumulators.shared());
            if (step == CHUNKS - 1) release(accumulators.own(from.slot));
            if (tile.row + ROWS * chunk < tile.end) finish(sums, chunk);  // the same for all
        }
        from.step_on();
    }

    BS_DEVICE void run(const TileOrder<Shape>& order, int rank) {
        const int tiles = order.count();
        for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
            begin(order.at(index, rank));
            drain();
        }
    }
};

}  // namespace bs::gemm
