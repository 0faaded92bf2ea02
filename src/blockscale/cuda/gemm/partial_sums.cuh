// Sums of a part of a tile, which a CTA leaves in memory for the CTA that stores the tile.
//
// Every CTA has a place of its own, used at most once in a launch, and a flag that says that its sums are there. Sums of a CTA
// fill the rows of x of some whole stages. So they come back through the ring, behind the operands of the tile, while the last
// products run: reading them costs no latency. Threads find the sums of their own places, so nothing is rearranged.
//
// A thread that does not multiply raises the flag. To wait until all stores are visible takes a microsecond, in which the
// others go on with their next tile.
#pragma once
#include "gemm/stage_ring.cuh"
#include "ptx/flags.cuh"

namespace bs::gemm {

template <class Shape>
struct PartialSums {
    static constexpr int QUADS = Shape::TILES_PER_WARP * Shape::M_TILES;  // of sums, of a thread
    static constexpr int STAGE_QUADS = Shape::X_BYTES / (16 * Shape::CONSUMERS);
    static constexpr int STAGES = QUADS / STAGE_QUADS;
    static_assert(STAGES * STAGE_QUADS == QUADS, "sums fill whole stages");

    const typename Shape::Arguments& a;
    u32 left;  // an mbarrier at which warps arrive that have left their sums
    int rank;

    BS_DEVICE void initialise() const { ptx::mbarrier_init(left, Shape::N_WARPS); }

    BS_DEVICE int place(int cluster) const { return cluster * Shape::CLUSTER + rank; }
    BS_DEVICE float4* sums_of(int cluster) const {
        return reinterpret_cast<float4*>(a.partial) + static_cast<long long>(place(cluster)) * QUADS * Shape::CONSUMERS;
    }

    template <class Sums>
    BS_DEVICE void leave(const Sums& sums) const {
        float4* to = sums_of(blockIdx.x) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const auto& s = sums[i / Shape::M_TILES][i % Shape::M_TILES];
            to[i * Shape::CONSUMERS] = make_float4(s[0], s[1], s[2], s[3]);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(left);
    }

    // By one thread: says so, if this CTA leaves sums. Only its first part can begin inside a tile.
    BS_DEVICE void announce(Work<Shape> work) const {
        Segment first;
        if (!work.take(first) || first.first == 0) return;
        ptx::mbarrier_wait(left, 0);
        ptx::raise_flag(a.arrivals + place(blockIdx.x));
    }

    // By the thread that brings x: those that another cluster has left, or will have, in stages of `ring`.
    BS_DEVICE void load(StageRing<Shape>& ring, int cluster) const {
        u32* flag = a.arrivals + place(cluster);
        ptx::wait_for_flag(flag);
        ptx::lower_flag(flag);
        ptx::tma::fence_after_stores_elsewhere();
        const float4* from = sums_of(cluster);
        for (int i = 0; i < STAGES; i++, from += STAGE_QUADS * Shape::CONSUMERS)
            ring.fill_next([&](u32 stage, u32 full) {
                ptx::mbarrier_arrive_expect_tx(full, Shape::X_BYTES);
                ptx::tma::load_bytes(stage, from, Shape::X_BYTES, full);
            });
    }

    // By the thread that brings weights.
    static BS_DEVICE void skip(StageRing<Shape>& ring) {
        for (int i = 0; i < STAGES; i++) ring.fill_next([](u32, u32 full) { ptx::mbarrier_arrive(full); });
    }

    // To the sums of a warp, when they have come.
    template <class Sums>
    static BS_DEVICE void add(Sums& sums, ReadRing<Shape>& ring) {
#pragma unroll
        for (int i = 0; i < STAGES; i++)
            ring.read_next([&](u32 stage) {
#pragma unroll
                for (int j = 0; j < STAGE_QUADS; j++) {
                    const int quad = i * STAGE_QUADS + j;
                    auto& s = sums[quad / Shape::M_TILES][quad % Shape::M_TILES];
                    u32 other[4];
                    ptx::load_shared(other, stage + (j * Shape::CONSUMERS + threadIdx.x) * 16);
#pragma unroll
                    for (int part = 0; part < 4; part++) s[part] += __uint_as_float(other[part]);
                }
            });
    }
};

}  // namespace bs::gemm
