// A loop whose index is known to the compiler as a constant: for operands of instructions that must be.
#pragma once
#include "base.cuh"

namespace bs::gemm {

template <int I>
struct Index {
    static constexpr int VALUE = I;
};

template <int COUNT, int I = 0, class Body>
BS_DEVICE void unrolled(const Body& body) {
    if constexpr (I < COUNT) {
        body(Index<I>());
        unrolled<COUNT, I + 1>(body);
    }
}

}  // namespace bs::gemm
