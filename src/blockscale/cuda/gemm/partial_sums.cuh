// Sums of a part of a tile, which a CTA leaves in memory for the CTA that stores the tile.
//
// Every CTA has a place of its own, used at most once in a launch, and a flag that says that its sums are there. They come
// back by bulk copies into the stages of the ring, which are empty by and by while the last products of the tile run:
// whoever adds them waits for no memory. Threads find the sums of their own places, so nothing is rearranged.
//
// Pieces of sums have mbarriers of their own, so the ring is where it was when they have been added. If they moved it on
// like operands, the compiler would not keep its slot in a uniform register, and the mainloop was 1 to 4% slower.
//
// A thread that does not multiply raises the flag: that all stores are visible takes a microsecond, in which the others go
// on with their next tile.
#pragma once
#include "gemm/stage_ring.cuh"
#include "ptx/flags.cuh"
#include "ptx/registers.cuh"

namespace bs::gemm {

template <class Shape>
struct PartialSums {
    static constexpr int QUADS = Shape::TILES_PER_WARP * Shape::M_TILES;  // of sums, of a thread
    static constexpr int QUAD_BYTES = 16 * Shape::CONSUMERS;              // of all threads
    static constexpr int PIECE_QUADS = Shape::STAGE_BYTES / QUAD_BYTES;
    static constexpr int PIECES = (QUADS + PIECE_QUADS - 1) / PIECE_QUADS;
    static constexpr int BARRIERS = Shape::SPLIT ? 2 * PIECES + 1 : 0;
    static_assert(!Shape::SPLIT || PIECES <= Shape::STAGES, "the ring holds the sums of a part");

    const typename Shape::Arguments& a;
    u32 barriers;  // of pieces: `full`, then `empty`; and one at which warps arrive that have left their sums
    int rank;

    BS_DEVICE u32 full(int piece) const { return barriers + 8 * piece; }
    BS_DEVICE u32 empty(int piece) const { return full(PIECES + piece); }
    BS_DEVICE u32 left() const { return full(2 * PIECES); }

    // Arrivals at barrier i.
    static BS_DEVICE int arrivals(int i) {
        return i < PIECES ? 1 : i < 2 * PIECES ? Shape::N_WARPS * Shape::CLUSTER : Shape::N_WARPS;
    }

    BS_DEVICE int place(int cluster) const { return cluster * Shape::CLUSTER + rank; }
    BS_DEVICE float4* sums_of(int cluster) const {
        return reinterpret_cast<float4*>(a.partial) + static_cast<long long>(place(cluster)) * QUADS * Shape::CONSUMERS;
    }

    // By those that multiply.
    template <class Sums>
    BS_DEVICE void leave(const Sums& sums) const {
        float4* to = sums_of(blockIdx.x) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const auto& s = sums[i / Shape::M_TILES][i % Shape::M_TILES];
            to[i * Shape::CONSUMERS] = make_float4(s[0], s[1], s[2], s[3]);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(left());
    }

    // By one thread. Only the first part of a CTA can begin inside a tile.
    BS_DEVICE void announce(Work<Shape> work) const {
        Segment first;
        if (!work.take(first) || first.first == 0) return;
        ptx::mbarrier_wait(left(), 0);
        ptx::raise_flag(a.arrivals + place(blockIdx.x));
    }
};

// The parts that a thread has seen come, one after the other.
template <class Shape>
struct OtherParts {
    using Sums = PartialSums<Shape>;

    const Sums& sums;
    u32 parity = 0;  // of the next part

    // By the thread that brings x: the parts that other clusters have left, or will have, of the tile whose operands are in
    // the ring or on their way.
    BS_DEVICE void load(const StageRing<Shape>& ring, const Work<Shape>& work, const Segment& segment) {
        bool first = true;
        work.for_other_parts(segment, [&](int cluster) {
            u32* flag = sums.a.arrivals + sums.place(cluster);
            ptx::wait_for_flag(flag);
            ptx::lower_flag(flag);
            ptx::tma::fence_after_stores_elsewhere();
            StageRing<Shape> at = ring;
#pragma unroll 1
            for (int i = 0, quad = 0; i < Sums::PIECES; i++, quad += Sums::PIECE_QUADS, at.step_on()) {
                if (first)
                    ptx::mbarrier_wait(at.empty(at.slot), at.parity ^ 1);
                else
                    ptx::mbarrier_wait(sums.empty(i), parity ^ 1);
                const int bytes = min(Sums::PIECE_QUADS, Sums::QUADS - quad) * Sums::QUAD_BYTES;
                ptx::mbarrier_arrive_expect_tx(sums.full(i), bytes);
                ptx::tma::load_bytes(at.stage_of(at.slot), sums.sums_of(cluster) + quad * Shape::CONSUMERS, bytes, sums.full(i));
            }
            first = false, parity ^= 1;
        });
        if (!first) wait(parity ^ 1);
    }

    // By the thread that brings weights: until the stages are the ring's again.
    BS_DEVICE void skip(const Work<Shape>& work, const Segment& segment) {
        work.for_other_parts(segment, [&](int) {
            wait(parity);
            parity ^= 1;
        });
    }

    BS_DEVICE void wait(u32 parity) const {
#pragma unroll 1
        for (int i = 0; i < Sums::PIECES; i++) ptx::mbarrier_wait(sums.empty(i), parity);
    }

    // By those that multiply.
    template <class Numbers>
    BS_DEVICE void add(Numbers& numbers, ReadRing<Shape> at, const Work<Shape>& work, const Segment& segment) {
        ptx::hold(at.slot);
        work.for_other_parts(segment, [&](int) {
            ReadRing<Shape> here = at;
#pragma unroll
            for (int i = 0; i < Sums::PIECES; i++, here.step_on()) {
                ptx::mbarrier_wait(sums.full(i), parity);
                const u32 from = here.stage_of(here.slot) + 16 * threadIdx.x;
#pragma unroll
                for (int j = 0; j < Sums::PIECE_QUADS; j++) {
                    const int quad = i * Sums::PIECE_QUADS + j;
                    if (quad >= Sums::QUADS) break;
                    auto& s = numbers[quad / Shape::M_TILES][quad % Shape::M_TILES];
                    u32 other[4];
                    ptx::load_shared(other, from + j * Sums::QUAD_BYTES);
#pragma unroll
                    for (int part = 0; part < 4; part++) s[part] += __uint_as_float(other[part]);
                }
                __syncwarp();
                if (here.lane == 0) here.arrive_in_cluster(sums.empty(i));
            }
            parity ^= 1;
        });
    }
};

}  // namespace bs::gemm
