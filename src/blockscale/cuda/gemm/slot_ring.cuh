// A ring of slots in shared memory that one thread fills by TMA, tile after tile, and others read.
//
// Each slot has two mbarriers. `full` completes when its bytes have come; of a pair of CTAs, those of both are counted at
// the even CTA, whose issuer multiplies for both. `empty` completes when all READERS of the slot have read it: warps, or
// the products of tcgen05, which tcgen05.commit says to both CTAs.
#pragma once
#include "gemm/ring_turn.cuh"
#include "gemm/tile_order.cuh"
#include "ptx/tma_pair.cuh"

namespace bs::gemm {

template <class Shape>
struct SlotRing {
    static constexpr int STAGES = Shape::STAGES, CTAS = Shape::CTAS;

    u32 shared;  // of the slots
    u32 barriers;

    BS_DEVICE u32 full(int slot) const { return barriers + 8 * slot; }
    BS_DEVICE u32 empty(int slot) const { return barriers + 8 * (STAGES + slot); }
    BS_DEVICE u32 slot_at(int slot) const { return shared + slot * Shape::STAGE_BYTES; }

    // By one thread, before anybody else in the cluster looks at the barriers.
    BS_DEVICE void initialise() const {
        for (int i = 0; i < STAGES; i++) ptx::mbarrier_init(full(i), 1), ptx::mbarrier_init(empty(i), Shape::READERS);
    }

    // `full` of a slot, where the bytes of this CTA, or of its pair, are counted.
    BS_DEVICE u32 counted_at(int slot) const {
        return CTAS == 2 ? ptx::tma::in_even_cta(full(slot)) : full(slot);
    }

    // A box to this CTA, counted where the pair counts.
    template <class... Coordinates>
    static BS_DEVICE void load(u32 to, const void* map, u32 barrier, Coordinates... at) {
        if constexpr (CTAS == 1)
            ptx::tma::load_cta(to, map, at..., barrier);
        else
            ptx::tma::load_pair(to, map, at..., barrier);
    }

    // By one thread: `fill(tile, stage, slot)` for all stages of all tiles of this CTA.
    template <class Order, class Fill>
    BS_DEVICE void fill_all(const Order& order, int rank, int stages, const Fill& fill) const {
        const int tiles = order.count();
        RingTurn<STAGES> turn;
        for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
            const OutputTile tile = order.at(index, rank);
#pragma unroll 1
            for (int stage = 0; stage < stages; stage++) {
                ptx::mbarrier_wait(empty(turn.slot), turn.parity ^ 1);  // the first time at once
                fill(tile, stage, turn.slot);
                turn.step_on();
            }
        }
        drain(turn);
    }

    // Until every slot is empty: of a pair, the other CTA may still read this one's shared memory, or arrive here.
    BS_DEVICE void drain(RingTurn<STAGES> turn) const {
        for (int i = 0; i < STAGES; i++) {
            ptx::mbarrier_wait(empty(turn.slot), turn.parity ^ 1);
            turn.step_on();
        }
    }
};

}  // namespace bs::gemm
