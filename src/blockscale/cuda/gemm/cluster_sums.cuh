// Sums of a tile whose k the CTAs of a cluster share (split-K): each sends the others what they store.
//
// A CTA stores the chunks of rows of x that are its own. Sums of the other chunks go to the shared memory of their owner
// (DSMEM), to where its stages were: so a CTA has one tile, and the cluster meets before anybody sends and after. Threads
// find the sums of their own places, so nothing is rearranged. To its own sums a CTA adds those of the others in their order.
#pragma once
#include "gemm/tiled_shape.cuh"
#include "ptx/cluster.cuh"

namespace bs::gemm {

template <class Shape>
struct ClusterSums {
    static constexpr int PARTS = Shape::PARTS, BRANCHES = Shape::BRANCHES, TILES = Shape::TILES_PER_WARP;
    static constexpr int CHUNKS = Shape::TILE_M / 32;                                          // of 32 rows of x
    static constexpr int OWN = (CHUNKS + BRANCHES * PARTS - 1) / (BRANCHES * PARTS) * BRANCHES;  // at the most
    static constexpr int QUADS = 4 * TILES;  // of a chunk, of a thread
    static_assert((PARTS - 1) * OWN * QUADS * Shape::CONSUMERS * 16 <= Shape::STAGES * Shape::STAGE_BYTES,
                  "sums of the others lie where the stages were");

    u8* stages;
    int part;  // of k, that this CTA has

    // Chunks of a gate and its up are finished together.
    static BS_DEVICE int owner_of(int chunk) { return chunk / BRANCHES % PARTS; }
    BS_DEVICE bool owns(int chunk) const { return owner_of(chunk) == part; }

    // Of sums that CTA `from` sends to CTA `to`, in the latter.
    BS_DEVICE u8* place(int from, int to, int chunk, int quad) const {
        const int sender = from < to ? from : from - 1, own = chunk / (BRANCHES * PARTS) * BRANCHES + chunk % BRANCHES;
        return stages + (((sender * OWN + own) * QUADS + quad) * Shape::CONSUMERS + threadIdx.x) * 16;
    }

    template <class Sums>
    BS_DEVICE void exchange(Sums& sums) const {
        ptx::cluster_sync();  // nobody reads a stage any more
        for_quads([&](int chunk, int quad, float(&s)[4]) {
            const int owner = owner_of(chunk);
            if (owner != part)
                ptx::store_dsmem(ptx::shared_address(place(part, owner, chunk, quad)), owner, make_float4(s[0], s[1], s[2], s[3]));
        }, sums);
        ptx::cluster_sync();
        for_quads([&](int chunk, int quad, float(&s)[4]) {
            if (!owns(chunk)) return;
#pragma unroll
            for (int other = 0; other < PARTS; other++) {
                if (other == part) continue;
                const float4 v = *reinterpret_cast<const float4*>(place(other, part, chunk, quad));
                s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
            }
        }, sums);
    }

    // What threads that have no sums do meanwhile.
    static BS_DEVICE void stand_by() {
        ptx::cluster_sync();
        ptx::cluster_sync();
    }

private:
    template <class Each, class Sums>
    static BS_DEVICE void for_quads(const Each& each, Sums& sums) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) each(chunk, quad, sums[quad / 4][4 * chunk + quad % 4]);
    }
};

}  // namespace bs::gemm
