// A GEMM for many rows of x, on Hopper:
//
//     out[m, n] = sum over k of x[m, k] * w[n, k] * scale[n, k / block]
//
// Operands. Weights are the A operand of wgmma, in registers, decoded and multiplied by their scales out of the layout
// that gemm/stream.cuh reads too; rows of x are the columns of B, in shared memory. So a product is 64 rows of w by
// TILE_M rows of x, and a weight is decoded once for TILE_M rows.
//
// Work. A CTA has WARPGROUPS warpgroups that decode and multiply, and one more, of which two threads bring operands by
// TMA. CTAs are persistent: each takes output tiles, or parts of them along k, as gemm/work.cuh says, and while it stores
// a tile, the operands of the next one come. CTAs of a cluster share rows of x, or the k of one tile. Parts of a tile are
// added in a fixed order: the same call gives the same bits.
//
// The same with w transposed, for gradients of x (gemm/transposed_tiles.cuh): sums over rows of w, and columns of w are
// columns of the output.
#pragma once
#include "gemm/clear_rows.cuh"
#include "gemm/cluster_sums.cuh"
#include "gemm/partial_sums.cuh"
#include "gemm/store_tile.cuh"
#include "gemm/tile_board.cuh"
#include "gemm/tiled_mainloop.cuh"
#include "ptx/registers.cuh"

namespace bs::gemm {

// By the warpgroups that multiply, each its branch's. A table in shared memory lies before the stages.
template <class Shape>
BS_DEVICE void load_table(const typename Shape::Arguments& a, typename Shape::Decoder& decoder, u8* stages) {
    if (!a.weights_unchanged) ptx::wait_for_prerequisites();
    constexpr int THREADS = Shape::CONSUMERS / Shape::BRANCHES;
    const int branch = branch_of_warpgroup<Shape>();
    decode::load(decoder, a.weight[branch].table, ptx::shared_address(stages) - Shape::TABLE_BYTES, branch,
                 threadIdx.x % THREADS, THREADS);
    if constexpr (Shape::DecoderOf::SHARED) ptx::bar_sync(3, Shape::CONSUMERS);
}

template <class Shape>
BS_DEVICE void consume(const typename Shape::Arguments& a, const StageRing<Shape>& ring, const TileOrder<Shape>& order,
                       TileBoard<Shape> board, const PartialSums<Shape>& partial, u8* stages, u8* staging, float* x_scales) {
    typename Shape::Decoder decoder;
    load_table<Shape>(a, decoder, stages);
    ptx::wait_for_prerequisites();
    TiledMainloop<Shape> mainloop(ReadRing<Shape>(ring), &decoder);
    TileStore<Shape> end(a, staging, x_scales);
    Work<Shape> work(order);
    for (Segment segment; work.take(segment);) {
        if constexpr (Shape::TRANSPOSED) {
            mainloop.wait_for_stage();
            mainloop.begin(board.current());
        }
        mainloop.run(segment.first, segment.end, [&] { end.begin(board.current()); });
        board.step_on();
        if constexpr (Shape::PARTS > 1) {
            const ClusterSums<Shape> parts{stages, static_cast<int>(blockIdx.y)};
            parts.exchange(mainloop.sums);
            end.store(mainloop.sums, [&](int chunk) { return parts.owns(chunk); });
            continue;
        }
        if constexpr (Shape::SPLIT) {
            if (segment.first > 0) {
                partial.leave(mainloop.sums);
                continue;
            }
            partial.add(mainloop.sums, mainloop, work, segment);
        }
        end.store(mainloop.sums, [](int) { return true; });
    }
}

// By the warpgroup that does not multiply: a thread for weights, one for x, one that says that sums have been left. Weights
// that nobody writes need not wait for the kernel before: they come while it ends.
template <class Shape>
BS_DEVICE void produce(const typename Shape::Arguments& a, StageRing<Shape>& ring, const TileOrder<Shape>& order,
                       TileBoard<Shape> board, const PartialSums<Shape>& partial, int rank) {
    if (threadIdx.x == Shape::CONSUMERS) {
        ring.fill(
            order, rank, [&] { if (!a.weights_unchanged) ptx::wait_for_prerequisites(); },
            [&](const OutputTile& tile, int k_tile, bool) { ring.load_weights(a, tile, k_tile); },
            [&](const Work<Shape>& work, const Segment& segment) { partial.wait_for_stages(work, segment); });
    } else if (threadIdx.x == Shape::CONSUMERS + 32) {
        ptx::tma::prefetch(a.x_map);  // or the first copy of x would wait for it
        ring.fill(
            order, rank, [] { ptx::wait_for_prerequisites(); },
            [&](const OutputTile& tile, int k_tile, bool is_first) {
                if (is_first) board.put_up(tile);
                ring.load_x(a, tile, k_tile, rank);
            },
            [&](const Work<Shape>& work, const Segment& segment) { partial.load(ring, work, segment); });
    } else if (Shape::SPLIT && threadIdx.x == Shape::CONSUMERS + 64) {
        partial.announce(Work<Shape>(order));
    }
    __syncwarp();
}

// Each by a thread of its own, before anybody else in the cluster looks at them: the first copies wait for all.
template <class Shape>
BS_DEVICE void initialise_barriers(u32 barrier) {
    constexpr int RING = 2 * Shape::STAGES, ALL = RING + PartialSums<Shape>::BARRIERS;
    const int i = threadIdx.x;
    if (i >= ALL) return;
    ptx::mbarrier_init(barrier, i < RING ? StageRing<Shape>::arrivals(i) : PartialSums<Shape>::arrivals(i - RING));
    ptx::mbarrier_init_fence();
}

template <class Shape>
BS_DEVICE void tiled(const typename Shape::Arguments& a) {
    __shared__ u64 barriers[2 * Shape::STAGES + PartialSums<Shape>::BARRIERS];
    __shared__ OutputTile tiles[TileBoard<Shape>::PLACES];
    u8* memory = ptx::dynamic_shared();
    memory += -ptx::shared_address(memory) & 1023;  // where panels with TMA's 128-byte swizzle may start
    memory += Shape::TABLE_BYTES;
    u8* staging = memory + Shape::STAGES * Shape::STAGE_BYTES + Shape::N_WARPS * Shape::DECODED_BYTES;
    int* starts = reinterpret_cast<int*>(staging + Shape::WARPGROUPS * Shape::STAGING_BYTES);
    float* x_scales = reinterpret_cast<float*>(Shape::RAGGED ? starts + 2 * (a.groups + 1) : starts);
    const int rank = Shape::CLUSTER > 1 ? blockIdx.y : 0;
    StageRing<Shape> ring(ptx::shared_address(memory), ptx::shared_address(barriers));
    const PartialSums<Shape> partial{a, ring.empty(Shape::STAGES), rank};  // behind the ring's
    initialise_barriers<Shape>(ring.full(threadIdx.x));
    ptx::trigger_dependents();
    if constexpr (Shape::CLUSTER > 1)
        ptx::cluster_sync();
    else
        __syncthreads();
    if constexpr (Shape::RAGGED) {
        ptx::wait_for_prerequisites();  // the kernel before may have written the group sizes
        find_starts<Shape>(a, starts);
        clear_rows_from<Shape>(a, starts[a.groups], blockIdx.x * Shape::CLUSTER + rank, gridDim.x * Shape::CLUSTER);
    }
    const TileOrder<Shape> order(a, starts);
    if (threadIdx.x >= Shape::CONSUMERS) {
        if constexpr (Shape::WARPGROUPS > 1) ptx::keep_registers<Shape::PRODUCER_REGISTERS>();
        produce<Shape>(a, ring, order, TileBoard<Shape>(tiles), partial, rank);
        if constexpr (Shape::PARTS > 1) ClusterSums<Shape>::stand_by();
    } else {
        if constexpr (Shape::WARPGROUPS > 1) ptx::take_registers<Shape::CONSUMER_REGISTERS>();
        consume<Shape>(a, ring, order, TileBoard<Shape>(tiles), partial, memory, staging, x_scales);
    }
    if constexpr (Shape::CLUSTER > 1) ptx::cluster_sync();  // others may still write here or arrive here
}

}  // namespace bs::gemm
