// A slot of a ring, and the parity of the phase that its mbarriers are in.
#pragma once
#include "base.cuh"

namespace bs::gemm {

template <int SLOTS>
struct RingTurn {
    int slot = 0;
    u32 parity = 0;

    BS_DEVICE void step_on() {
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }
};

// The same in one register, for threads that have few.
template <int SLOTS>
struct PackedTurn {
    int turn = 0;  // of two rounds

    BS_DEVICE int slot() const { return turn < SLOTS ? turn : turn - SLOTS; }
    BS_DEVICE u32 parity() const { return turn >= SLOTS; }
    BS_DEVICE void step_on() { turn = turn + 1 < 2 * SLOTS ? turn + 1 : 0; }
};

}  // namespace bs::gemm
