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
            value_[i] = values[i];
            const double next = values[i + 1 < COUNT ? i + 1 : i];
            // A float32 lies above the midpoint exactly if it lies above this.
            middle_[i] = float_below(product(sum(double(values[i]), next), 0.5));
            const float size = magnitude(middle_[i]);
            if (i + 1 < COUNT && size > 0.0f && size < power_of_two(-40)) ordinary = false;
        }
    }

    static constexpr int SHIFT = 0;  // where a code stands in what shifted_code gives
    EXACT u32 shifted_code(float x) const { return code(x); }
    EXACT u32 code(float x) const {
        u32 code = 0;
#pragma unroll
        for (int half = COUNT / 2; half > 0; half /= 2)
            if (x > middle_[code + half - 1]) code += half;
        return code;
    }
    EXACT float value(u32 code) const { return value_[code]; }
    EXACT float nearest(float x) const { return value_[code(x)]; }

    bool ordinary;

 private:
    float value_[COUNT], middle_[COUNT];
};
