// What the squared errors of a block's numbers count in a search.
#pragma once
#include "numbers/format.cuh"
#include "ptx/warp.cuh"

namespace bs::scale_search {

using namespace numbers;  // the arithmetic and the formats that a search is written in

// All alike.
template <class Format, int VALUES>
struct Unweighted {
    static constexpr bool ALIKE = true;
    static constexpr float total = Format::BLOCK, AMAX = power_of_two(60), RANGE = power_of_two(50);

    BS_DEVICE Unweighted() {}
    static BS_DEVICE float quick_square(int, float off, float errors) { return fused(off, off, errors); }
    static BS_DEVICE double square(int, double off) { return product(off, off); }
    static BS_DEVICE bool is_usual() { return true; }
};

// As the importance of their columns says; alike in blocks where it is zero throughout, or anywhere
// negative or not finite.
template <class Format, int VALUES>
struct Weighted {
    static constexpr int LANES = Format::BLOCK / VALUES;
    static constexpr bool ALIKE = false;
    static constexpr float AMAX = power_of_two(40), RANGE = power_of_two(40);
    float weight[VALUES], total = 0.0f;

    template <class Run>
    BS_DEVICE Weighted(const Run& run, int first) {
        bool odd = false, any = false;
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            weight[i] = run[first + i];
            odd |= !(weight[i] >= 0.0f && weight[i] < float_of(INFINITE_BITS));
            any |= weight[i] > 0.0f;
        }
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) {
            odd |= ptx::shfl_xor(int(odd), i) != 0;
            any |= ptx::shfl_xor(int(any), i) != 0;
        }
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            if (odd || !any) weight[i] = 1.0f;
            total += weight[i];
        }
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) total += ptx::shfl_xor(total, i);
    }

    BS_DEVICE float quick_square(int i, float off, float errors) const {
        return fused(product(weight[i], off), off, errors);
    }
    BS_DEVICE double square(int i, double off) const {
        return product(double(weight[i]), product(off, off));
    }
    // Whether float32 holds their squares and sums.
    BS_DEVICE bool is_usual() const { return total >= power_of_two(-20) && total <= power_of_two(20); }
};

}  // namespace bs::scale_search
