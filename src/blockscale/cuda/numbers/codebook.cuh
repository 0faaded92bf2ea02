// Codebooks: 2^BITS ascending numbers. A code is the number of midpoints of neighbours below x.
#pragma once
#include "numbers/small_float.cuh"

namespace bs::numbers {

template <int BITS>
struct Codebook {
    static constexpr bool IS_FLOAT = false, IN_STEPS = false;
    static constexpr int COUNT = 1 << BITS, MAX_EXPONENT = 0;
    static constexpr float MAX = 1.0f, KEPT = 1.033f;
    static BS_DEVICE float saturated(float x) { return x; }  // the search for a code ends by itself
};

// A tensor's own codebook, where lanes look things up: in shared memory.
//
// Numbers up to KEPT fall into twice as many intervals of one length as there are codes. Where no interval
// has more than one midpoint, as in the codebooks of normally distributed numbers, the interval of a number
// leaves two codes, and one comparison decides. There are as many again beyond, since the scale that suits a
// block best may be half of the one that suits its largest number; but most numbers fall into the first, which lie in
// banks of their own up to 4 bits. Other numbers and codebooks are searched by halves.
template <int BITS>
class Table {
 public:
    static constexpr int COUNT = 1 << BITS;
    static constexpr int PLACE = 0;  // where a code stands in what placed_code gives
    static constexpr u32 BASE = 0;
    static constexpr bool HAS_INTERVALS = BITS <= 5;

    // Each worker fills a part; when all have, its part of the intervals. `ordinary` and `in_intervals` are
    // true before. The first is false after if a midpoint is so near to zero that a quick quotient could
    // fall on its wrong side; the second, if an interval has two midpoints.
    BS_DEVICE void fill(const float* values, int worker, int workers) {
        for (int i = worker; i < COUNT; i += workers) {
            entries_[COUNT + i] = values[i];
            const double next = values[i + 1 < COUNT ? i + 1 : i];
            // A float32 lies above the midpoint exactly if it lies above this.
            entries_[i] = float_below(product(sum(double(values[i]), next), 0.5));
            const float size = magnitude(entries_[i]);
            if (i + 1 < COUNT && size > 0.0f && size < power_of_two(-40)) ordinary = false;
        }
    }

    BS_DEVICE void fill_intervals(int worker, int workers) {
        for (int i = worker; i < INTERVALS; i += workers) {
            const float from = (i - 2 * COUNT - 0.626f) / PER_ONE, to = (i - 2 * COUNT + 0.376f) / PER_ONE;
            int below = 0, inside = 0;
            for (int k = 0; k < COUNT - 1; ++k) {
                below += entries_[k] < from;
                inside += entries_[k] >= from && entries_[k] <= to;
            }
            if (inside > 1) in_intervals = false;
            middle_[i] = inside ? sum(entries_[below], 0.0f) : float_of(INFINITE_BITS);  // no -0
            code_[i] = below;
        }
    }

    BS_DEVICE u32 placed_code(float x) const { return u32(find(x) - entries_); }
    BS_DEVICE float nearest(float x) const { return find(x)[COUNT]; }
    BS_DEVICE float value(u32 code) const { return entries_[COUNT + code]; }

    // The code of x / d, with r = 1 / d to within 2^-22, for quotients up to NEAR; ambiguous where the
    // two may lie on different sides of the midpoint.
    static constexpr float NEAR = 2.0f * Codebook<BITS>::KEPT;
    BS_DEVICE u32 near_code(float x, float r, bool& ambiguous) const {
        const float quotient = product(x, r);
        const u32 place = place_of(x, r);
        // Negative, if not zero, where the quotient is above.
        const float to_middle = sum(at(middle_, place), -quotient);
        ambiguous |= magnitude(to_middle) < product(magnitude(quotient), power_of_two(-20));
        return at(code_, place) + (bits_of(to_middle) >> 31);
    }

    // x less the nearest value times d, with r nearly 1 / d; where that is not clear, of another value that
    // is as near.
    template <Reach>
    BS_DEVICE float off(float x, float d, float r) const {
        return fused(-nearest(product(x, r)), d, x);
    }

    bool ordinary, in_intervals;

 private:
    // Intervals are counted in quarters, by rounding to integers: with a last digit of zero, that is the
    // place of an entry in bytes, whatever the numbers.
    static constexpr int INTERVALS = HAS_INTERVALS ? 4 * COUNT : 1;
    static constexpr int PER_ONE = int((COUNT - 0.625f) / Codebook<BITS>::KEPT);
    static constexpr float COUNT_FROM = 12582914.0f;  // 1.5 * 2^23 and a half interval

    static BS_DEVICE u32 place_of(float x, float r) {
        const float counted = fused(x, product(r, 4 * PER_ONE), COUNT_FROM + 8 * COUNT);
        return bits_of(counted) & (4 * INTERVALS - 4);
    }
    template <class T>
    static BS_DEVICE T at(const T* entries, u32 place) {
        return *reinterpret_cast<const T*>(reinterpret_cast<const u8*>(entries) + place);
    }

    // By halves: the entry of a code.
    BS_DEVICE const float* find(float x) const {
        const float* at = entries_;
#pragma unroll
        for (int bit = BITS - 1; bit >= 0; --bit)
            if (x > at[(1 << bit) - 1]) at += 1 << bit;
        return at;
    }

    float entries_[2 * COUNT];  // midpoints, then values
    float middle_[INTERVALS];
    u32 code_[INTERVALS];
};

}  // namespace bs::numbers
