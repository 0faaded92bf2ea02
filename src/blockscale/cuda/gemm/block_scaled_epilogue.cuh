// Four warps that read finished tiles out of TMEM: tensor scales, bias, activation, one cast, and stores to memory.
//
// A warp reaches the 32 lanes of TMEM that its number modulo 4 names. A thread has one row of the tile and reads CHUNK
// neighbouring columns at a time, which it stores by 32 bytes where places allow it: whole sectors, which L1 does not
// keep.
#pragma once
#include "gemm/accumulators.cuh"
#include "gemm/block_scaled_ring.cuh"
#include "gemm/epilogue.cuh"
#include "ptx/store_wide.cuh"

namespace bs::gemm {

template <class Shape>
struct BlockScaledEpilogue {
    using Arguments = typename Shape::Arguments;
    static constexpr int CHUNK = 32, CHUNKS = Shape::TILE_N / CHUNK, BRANCHES = Shape::BRANCHES;
    static constexpr int SIZE = Shape::OUT == FLOAT32 ? 4 : 2;  // bytes of a result
    static constexpr int PART = 32 / SIZE;                      // results of one store
    static constexpr int BARRIER = 1, THREADS = 128;

    const Arguments& a;
    const Accumulators<Shape>& accumulators;
    float* bias;  // shared memory: MMA_N numbers
    int warp, lane;
    AccumulatorTurn<Shape> from;
    OutputTile tile;
    int row;
    float factor[BRANCHES];

    BS_DEVICE BlockScaledEpilogue(const Arguments& a, const Accumulators<Shape>& accumulators, float* bias)
        : a(a), accumulators(accumulators), bias(bias), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}

    BS_DEVICE bool has_bias() const { return a.weight[0].bias || a.weight[BRANCHES - 1].bias; }

    // What the tile needs of memory, while the products run.
    BS_DEVICE void begin(const OutputTile& next, int rank) {
        tile = next;
        row = tile.row + rank * Shape::CTA_ROWS + 32 * warp + lane;
        const float x_scale = a.x_scale && row < tile.end ? a.x_scale[row] : 1.0f;
#pragma unroll
        for (int i = 0; i < BRANCHES; i++)
            factor[i] = x_scale * (a.weight[i].tensor_scale ? a.weight[i].tensor_scale[tile.group] : 1.0f);
        if (!has_bias()) return;
        ptx::bar_sync(BARRIER, THREADS);  // the last tile's have been read
        for (int i = 32 * warp + lane; i < Shape::MMA_N; i += THREADS) {
            const void* numbers = a.weight[i / Shape::TILE_N].bias;
            const int column = tile.n_tile * Shape::TILE_N + i % Shape::TILE_N;
            const long long at = static_cast<long long>(tile.group) * a.n + column;
            bias[i] = numbers && column < a.n ? load_number(numbers, at, a.bias_dtype) : 0.0f;
        }
        ptx::bar_sync(BARRIER, THREADS);
    }

    BS_DEVICE float finish(const u32 (&sums)[BRANCHES][CHUNK], int chunk, int i) const {
        float y[BRANCHES];
#pragma unroll
        for (int b = 0; b < BRANCHES; b++) {
            y[b] = __uint_as_float(sums[b][i]) * factor[b];
            if (has_bias()) y[b] += bias[b * Shape::TILE_N + CHUNK * chunk + i];
        }
        return Shape::GATED ? activate(Shape::ACTIVATION, y[0], y[BRANCHES - 1], a.alpha, a.limit) : y[0];
    }

    BS_DEVICE void store(const u32 (&sums)[BRANCHES][CHUNK], int chunk) const {
        if (row < tile.first || row >= tile.end) return;
        const int column = tile.n_tile * Shape::TILE_N + CHUNK * chunk;
        const long long at = row * a.out_stride + column;
        const bool aligned = (reinterpret_cast<u64>(a.out) + at * SIZE) % 32 == 0;
#pragma unroll
        for (int part = 0; part < CHUNK / PART; part++) {
            float values[PART];
#pragma unroll
            for (int i = 0; i < PART; i++) values[i] = finish(sums, chunk, PART * part + i);
            if (aligned && column + PART * (part + 1) <= a.n) {
                u32 words[8];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if constexpr (Shape::OUT == FLOAT32)
                        words[i] = __float_as_uint(values[i]);
                    else if constexpr (Shape::OUT == BFLOAT16)
                        words[i] = ptx::BFloat16x2::from_floats(values[2 * i], values[2 * i + 1]);
                    else
                        words[i] = ptx::Float16x2::from_floats(values[2 * i], values[2 * i + 1]);
                ptx::store_32_bytes(static_cast<u8*>(a.out) + (at + PART * part) * SIZE, words);
            } else {
#pragma unroll
                for (int i = 0; i < PART; i++)
                    if (column + PART * part + i < a.n) store_number(a.out, at + PART * part + i, values[i], Shape::OUT);
            }
        }
    }

    // The columns of this warp's lanes that are left to read may be overwritten when all warps have arrived.
    BS_DEVICE void release(u32 barrier) const {
        ptx::tcgen05::fence_before_thread_sync();
        __syncwarp();
        if (lane == 0) Accumulators<Shape>::arrive(barrier);
    }

    // Chunks in the order in which they are read: where accumulators share columns, those come first. Of a gated tile the
    // shared columns are up's, and each chunk of gate is read with one of up, so that all are read before any is released.
    BS_DEVICE int chunk_at(int step) const {
        if (Shape::GATED || Accumulators<Shape>::PARTS || from.slot == 1) return step;
        return CHUNKS - 1 - step;
    }

    BS_DEVICE void drain() {
        constexpr int OWN_STEPS = Accumulators<Shape>::PARTS ? Shape::FIRST_N / CHUNK : CHUNKS;
        constexpr int SHARED_STEPS = Shape::GATED ? CHUNKS : (Shape::SHARED_COLUMNS + CHUNK - 1) / CHUNK;
        const u32 columns = accumulators.columns(from.slot) + ptx::tcgen05::lane_bits(32 * warp);
        ptx::mbarrier_wait(accumulators.full(from.slot), from.parity);
        ptx::tcgen05::fence_after_thread_sync();
#pragma unroll 1
        for (int step = 0; step < CHUNKS; step++) {
            const int chunk = chunk_at(step);
            u32 sums[BRANCHES][CHUNK];
#pragma unroll
            for (int b = 0; b < BRANCHES; b++)
                ptx::tcgen05::ld_32x32b(sums[b], columns + b * Shape::TILE_N + CHUNK * chunk);
#pragma unroll
            for (int b = 0; b < BRANCHES; b++) ptx::tcgen05::wait_ld(sums[b]);
            if (Accumulators<Shape>::SHARES && step == SHARED_STEPS - 1) release(accumulators.shared());
            if (step == OWN_STEPS - 1) release(accumulators.own(from.slot));
            if (Accumulators<Shape>::PARTS && step == CHUNKS - 1) release(accumulators.second());
            store(sums, chunk);
        }
        from.step_on();
    }

    BS_DEVICE void run(const WholeTileOrder<Shape>& order, int rank) {
        const int tiles = order.count();
        for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
            begin(order.at(index, 0), rank);
            drain();
        }
    }
};

}  // namespace bs::gemm
