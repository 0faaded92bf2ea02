// Codebooks: 2^BITS ascending numbers. A code is the number of midpoints of neighbours below x.
#pragma once
#include "exact.cuh"

template <int BITS>
struct Codebook {
    static constexpr bool IS_FLOAT = false;
    static constexpr int COUNT = 1 << BITS, MAX_EXPONENT = 0;
    static constexpr float MAX = 1.0f;
    static EXACT float saturated(float x) { return x; }  // the search for a code ends by itself
};

// A tensor's own codebook, where lanes look things up: in shared memory.
template <int BITS>
class Table {
 public:
    static constexpr int COUNT = 1 << BITS;

    // Each worker fills a part. `ordinary` is true before, and false after if a midpoint is so near
    // to zero that a quick quotient could fall on its wrong side.
    EXACT void fill(const float* values, int worker, int workers) {
        for (int i = worker; i < COUNT; i += workers) {
            entries_[COUNT + i] = values[i];
            const double next = values[i + 1 < COUNT ? i + 1 : i];
            // A float32 lies above the midpoint exactly if it lies above this.
            entries_[i] = float_below(product(sum(double(values[i]), next), 0.5));
            const float size = magnitude(entries_[i]);
            if (i + 1 < COUNT && size > 0.0f && size < power_of_two(-40)) ordinary = false;
        }
    }

    static constexpr int SHIFT = 0;  // where a code stands in what shifted_code gives
    EXACT u32 shifted_code(float x) const {
        return u32(find(x, [](int, bool) {}) - entries_);
    }
    EXACT float nearest(float x) const { return find(x, [](int, bool) {})[COUNT]; }
    EXACT float value(u32 code) const { return entries_[COUNT + code]; }

    // visit(bit, is_set) for each bit of the code of x, from the top.
    template <class Visit>
    EXACT void bits(float x, Visit visit) const {
        find(x, visit);
    }

    bool ordinary;

 private:
    // By halves: the entry of a code, whose bits are the answers.
    template <class Visit>
    EXACT const float* find(float x, Visit visit) const {
        const float* at = entries_;
#pragma unroll
        for (int bit = BITS - 1; bit >= 0; --bit) {
            const bool above = x > at[(1 << bit) - 1];
            visit(bit, above);
            if (above) at += 1 << bit;
        }
        return at;
    }

    float entries_[2 * COUNT];  // midpoints, then values
};
