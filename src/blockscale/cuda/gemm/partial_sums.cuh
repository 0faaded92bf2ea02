// Sums of a part of a tile, which a warpgroup leaves in memory for the warpgroup that stores the tile.
//
// Every warpgroup has a place of its own, used at most once in a launch, and a flag that says that its sums are there.
// Threads find the sums of their own places, so nothing is rearranged. Whoever reads them clears the flag.
#pragma once
#include "gemm/tiled_shape.cuh"
#include "ptx/flags.cuh"
#include "ptx/shared.cuh"

namespace bs::gemm {

template <class Shape>
struct PartialSums {
    static constexpr int QUADS = Shape::TILES_PER_WARP * Shape::M_TILES;  // of sums, of a thread

    const typename Shape::Arguments& a;
    int rank, warpgroup, thread;

    BS_DEVICE PartialSums(const typename Shape::Arguments& a, int rank)
        : a(a), rank(rank), warpgroup(threadIdx.x / 128), thread(threadIdx.x % 128) {}

    BS_DEVICE int place(int cluster) const {
        return (cluster * Shape::CLUSTER + rank) * Shape::WARPGROUPS + warpgroup;
    }
    BS_DEVICE float4* sums_of(int cluster) const {
        return reinterpret_cast<float4*>(a.partial) + (static_cast<long long>(place(cluster)) * QUADS) * 128 + thread;
    }
    BS_DEVICE void meet() const { ptx::bar_sync(1 + warpgroup, 128); }

    template <class Sums>
    BS_DEVICE void leave(const Sums& sums) const {
        float4* to = sums_of(blockIdx.x);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const auto& s = sums[i / Shape::M_TILES][i % Shape::M_TILES];
            to[i * 128] = make_float4(s[0], s[1], s[2], s[3]);
        }
        __threadfence();
        meet();
        if (thread == 0) ptx::raise_flag(a.arrivals + place(blockIdx.x));
    }

    // Those that the same warpgroup of another cluster has left, or will have.
    template <class Sums>
    BS_DEVICE void add(Sums& sums, int cluster) const {
        if (thread == 0) ptx::wait_for_flag(a.arrivals + place(cluster));
        meet();
        const float4* from = sums_of(cluster);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const float4 other = __ldcg(from + i * 128);
            auto& s = sums[i / Shape::M_TILES][i % Shape::M_TILES];
            s[0] += other.x, s[1] += other.y, s[2] += other.z, s[3] += other.w;
        }
        if (thread == 0) ptx::lower_flag(a.arrivals + place(cluster));
    }
};

}  // namespace bs::gemm
