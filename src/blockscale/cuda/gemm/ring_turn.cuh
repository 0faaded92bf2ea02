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

}  // namespace bs::gemm
