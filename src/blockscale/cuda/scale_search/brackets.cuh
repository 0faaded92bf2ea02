// Errors under several scales that are near each other, with one lookup for each number.
//
// The nearest of two neighbouring values is the nearest of all, as long as a quotient is not below the
// midpoint below them nor above the one above. It is then as far away as |quotient - middle| is from half of
// the distance of the two, beyond the first and the last value too. So a number's quotient under one scale
// tells two values that do for its quotients under scales that are a little smaller, and each of these takes
// three operations: a product less `middle`, that less `half`, and the square.
//
// Quotients fall into intervals of one length. Two values do for an interval if there is at most one midpoint
// in it, and in what it becomes under the smaller scales; for E2M1 and the codebooks of normally distributed
// numbers, PER_ONE and REACH are such that this holds, and `fit` says whether it does.
//
// What an interval needs is 8 bytes, which shared memory gives to 16 lanes at a time: it stands there as often,
// so that each lane finds it in banks of its own; half as often where there are many intervals.
#pragma once
#include "numbers/format.cuh"
#include "ptx/warp.cuh"

namespace bs::scale_search {

using namespace numbers;  // the arithmetic and the formats that a search is written in

// WANTED: there is a search among scales next to each other.
template <class Format, bool WANTED>
class Brackets {
    using Element = typename Format::Element;
    // How much larger the largest scale of a group may be than the smallest, in sixteenths.
    static constexpr int REACH = Element::IS_FLOAT ? 4 : Format::BITS <= 4 ? 3 : 1;
    static constexpr int STEPS = 1 << Format::Scale::MANTISSA;  // of scales in a binade
    static constexpr int SMALLER = REACH * STEPS / 16;

 public:
    static constexpr bool EXIST =
        WANTED && (Element::IS_FLOAT ? Element::IN_STEPS && Format::BITS == 4 && SMALLER > 0
                                     : Format::BITS <= 5);
    static constexpr int GROUP = EXIST ? 1 + SMALLER : 1;  // scales, with codes next to each other

    // Two values next to each other.
    struct alignas(8) Bracket {
        float middle, half;

        // How far x / d is from the nearer one, with r nearly 1 / d; of either sign.
        BS_DEVICE float off(float x, float r) const {
            return sum(half, -magnitude(fused(x, r, -middle)));
        }
    };

    // For x under a scale whose reciprocal is nearly r, and the smaller ones of its group; |x r| is up to
    // 2.4 times the largest value.
    BS_DEVICE Bracket around(float x, float r) const {
        // Counted in parts of an interval, by rounding to an integer: without the part, the place of a row in
        // bytes.
        const float counted = fused(x, product(r, ROW * PER_ONE), COUNT_FROM + ROW * INTERVALS / 2);
        const u32 own = ptx::lane_id() % COPIES * sizeof(Bracket);
        const u32 place = (bits_of(counted) & (ROW * (INTERVALS - 1))) | own;
        return *reinterpret_cast<const Bracket*>(reinterpret_cast<const u8*>(rows_) + place);
    }

    // Each worker fills a part. `fit` is true before, and false after if an interval needs more than two
    // values.
    BS_DEVICE void fill(const float* codebook, int worker, int workers) {
        constexpr float RATIO = 1.0f + float(SMALLER) / STEPS;
        for (int i = worker; i < INTERVALS; i += workers) {
            // Rounding begins half a part early; the rest is for what q is off by.
            const float from = (i - INTERVALS / 2 - 0.5f / ROW - 0.001f) / PER_ONE;
            const float to = (i - INTERVALS / 2 + 1 - 0.5f / ROW + 0.001f) / PER_ONE;
            const float lowest = smaller(from, from * RATIO), highest = larger(to, to * RATIO);
            int below = 0, inside = 0;
            for (int k = 0; k + 1 < COUNT; ++k) {
                const float middle = between(codebook, k).middle;
                below += middle < lowest;
                inside += middle >= lowest && middle <= highest;
            }
            if (inside > 1) fit = false;
            const Bracket found = between(codebook, below + 1 < COUNT ? below : COUNT - 2);
            for (int copy = 0; copy < COPIES; ++copy)  // in turns, so that workers do not all meet at a bank
                rows_[i][(copy + i) % COPIES] = found;
        }
    }

    bool fit;

 private:
    static constexpr int COUNT = (1 << Format::BITS) - Element::IS_FLOAT;  // zero is one value
    static constexpr int INTERVALS = 8 << Format::BITS;
    static constexpr float PER_ONE = (Element::IS_FLOAT ? 1.4f : 1.6f) * (1 << Format::BITS) / Element::MAX;
    static constexpr float COUNT_FROM = 12582912.0f;  // 1.5 * 2^23
    static constexpr int COPIES = INTERVALS <= 128 ? 16 : 8, ROW = COPIES * sizeof(Bracket);

    static BS_DEVICE float value(const float* codebook, int index) {
        if constexpr (Element::IS_FLOAT) {
            const int place = index - COUNT / 2;
            return place < 0 ? -Element::decode_number(-place) : Element::decode_number(place);
        } else {
            return codebook[index];
        }
    }

    static BS_DEVICE Bracket between(const float* codebook, int index) {
        const float low = value(codebook, index), high = value(codebook, index + 1);
        return {(low + high) * 0.5f, (high - low) * 0.5f};
    }

    Bracket rows_[EXIST ? INTERVALS : 1][COPIES];
};

}  // namespace bs::scale_search
