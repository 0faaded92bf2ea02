// Sums of a part of a tile, which a CTA leaves in memory for the CTA that stores the tile.
//
// Every CTA has a place of its own, used at most once in a launch, and a flag that says that its sums are there. They come
// back by bulk copies into the stages of the ring, which are empty by and by while the last products of the tile run:
// whoever adds them seldom waits for memory. Threads find the sums of their own places, so nothing is rearranged. A CTA adds
// others' sums to one tile at the most: the last of its part.
//
// Pieces of sums have mbarriers of their own, so the ring is where it was when they have been added. If they moved it on
// like operands, the compiler would not keep its slot in a uniform register, and products were up to 4% slower.
//
// A thread that does not multiply raises the flag: while it waits until all stores are visible, the others go on with their
// next tile.
#pragma once
#include "gemm/ring_turn.cuh"
#include "gemm/stage_ring.cuh"
#include "ptx/flags.cuh"
#include "ptx/registers.cuh"

namespace bs::gemm {

template <class Shape>
struct PartialSums {
    static constexpr int QUADS = Shape::TILES_PER_WARP * Shape::M_TILES;  // of sums, of a thread
    static constexpr int QUAD_BYTES = 16 * Shape::CONSUMERS;              // of all threads
    static constexpr int MOST_QUADS = Shape::STAGE_BYTES / QUAD_BYTES;    // that a stage holds
    static constexpr int PIECES = (QUADS + MOST_QUADS - 1) / MOST_QUADS;
    static constexpr int PIECE_QUADS = (QUADS + PIECES - 1) / PIECES;
    static constexpr int BARRIERS = Shape::SPLIT ? 2 * Shape::STAGES + 2 : 0;

    const typename Shape::Arguments& a;
    u32 barriers;  // of pieces: `full`, then `empty`, of a slot each; `left` and `returned`
    int rank;

    BS_DEVICE u32 full(int slot) const { return barriers + 8 * slot; }
    BS_DEVICE u32 empty(int slot) const { return full(Shape::STAGES + slot); }
    BS_DEVICE u32 left() const { return full(2 * Shape::STAGES); }          // warps arrive that have left their sums
    BS_DEVICE u32 returned() const { return full(2 * Shape::STAGES + 1); }  // the stages are the ring's again

    // Arrivals at barrier i.
    static BS_DEVICE int arrivals(int i) {
        const int of_slots = i / Shape::STAGES;
        if (of_slots == 1) return Shape::N_WARPS * Shape::CLUSTER;
        return i == 2 * Shape::STAGES ? Shape::N_WARPS : 1;
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

    // By the thread that brings x: the parts that other clusters have left, or will have, of the tile whose operands are in
    // the ring or on their way.
    BS_DEVICE void load(const StageRing<Shape>& ring, const Work<Shape>& work, const Segment& segment) const {
        StageRing<Shape> at = ring;
        RingTurn<Shape::STAGES> next, oldest;  // of the pieces
        int under_way = 0;
        const auto wait_for_oldest = [&] {
            ptx::mbarrier_wait(empty(oldest.slot), oldest.parity);
            oldest.step_on();
        };
        work.for_other_parts(segment, [&](int cluster) {
            u32* flag = a.arrivals + place(cluster);
            ptx::wait_for_flag(flag);
            ptx::tma::fence_after_stores_elsewhere();
#pragma unroll 1
            for (int quad = 0; quad < QUADS; quad += PIECE_QUADS) {
                if (under_way < Shape::STAGES)
                    under_way++, ptx::mbarrier_wait(at.empty(at.slot), at.parity ^ 1);
                else
                    wait_for_oldest();
                const int bytes = min(PIECE_QUADS, QUADS - quad) * QUAD_BYTES;
                ptx::mbarrier_arrive_expect_tx(full(next.slot), bytes);
                ptx::tma::load_bytes(at.stage_of(at.slot), sums_of(cluster) + quad * Shape::CONSUMERS, bytes, full(next.slot));
                at.step_on(), next.step_on();
            }
            ptx::lower_flag(flag);
        });
        if (under_way == 0) return;
        for (; under_way > 0; under_way--) wait_for_oldest();
        ptx::mbarrier_arrive(returned());
    }

    // By the thread that brings weights.
    BS_DEVICE void wait_for_stages(const Work<Shape>& work, const Segment& segment) const {
        work.for_other_parts(segment, [&](int) { ptx::mbarrier_wait(returned(), 0); });
    }

    // By those that multiply.
    template <class Sums>
    BS_DEVICE void add(Sums& sums, ReadRing<Shape> at, const Work<Shape>& work, const Segment& segment) const {
        ptx::hold(at.slot);
        RingTurn<Shape::STAGES> next;  // piece
        work.for_other_parts(segment, [&](int) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                ptx::mbarrier_wait(full(next.slot), next.parity);
                const u32 from = at.stage_of(at.slot) + 16 * threadIdx.x;
#pragma unroll
                for (int j = 0; j < PIECE_QUADS; j++) {
                    const int quad = i * PIECE_QUADS + j;
                    if (quad >= QUADS) break;
                    auto& s = sums[quad / Shape::M_TILES][quad % Shape::M_TILES];
                    u32 other[4];
                    ptx::load_shared(other, from + j * QUAD_BYTES);
#pragma unroll
                    for (int part = 0; part < 4; part++) s[part] += __uint_as_float(other[part]);
                }
                __syncwarp();
                if (at.lane == 0) at.arrive_in_cluster(empty(next.slot));
                at.step_on(), next.step_on();
            }
        });
    }
};

}  // namespace bs::gemm
