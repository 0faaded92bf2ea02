// Quantising one block, shared by adjacent lanes: blockscale/numerics/quantize.py. Its steps and its
// roundings are the same, so its bits are the same.
//
// A search weighs candidates by float32 sums, whose distance from the float64 sums of the definition
// is bounded. Where the best of them is not the best beyond doubt, the definition decides.
#pragma once
#include "block_scale.cuh"
#include "divisor.cuh"

// How candidates for a block's scale are found; the earlier one wins a tie.
enum Search { FROM_AMAX, NEIGHBOURS, FOUR_OVER_SIX };

// Codes of floats, by magnitude; codebooks have a Table instead.
template <class Element>
struct FloatEncoder {
    static constexpr bool ordinary = true;
    static EXACT u32 code(float x) { return Element::code(x); }
    static EXACT float nearest(float x) { return Element::nearest(x); }
};

template <class Format, class Rule, Search SEARCH, int VALUES, class Encoder>
class BlockQuantizer {
 public:
    using Element = typename Format::Element;
    using Scale = typename Format::Scale;
    static constexpr int LANES = Format::BLOCK / VALUES;

    EXACT BlockQuantizer(float (&x)[VALUES], float tensor_scale, const Encoder& encoder)
        : x_(x), tensor_scale_(tensor_scale), encoder_(encoder) {
        find_amax();
        scale_ = Rule::of_amax(amax_, tensor_scale_);
        if constexpr (SEARCH != FROM_AMAX) search();
    }

    // The bits of the scale, as stored.
    EXACT u32 scale() const {
        if (lost_) return Scale::NAN_CODE;
        return Format::WIDE_SCALE ? bits_of(scale_.value) : scale_.code;
    }

    // put(i, code) for each number.
    template <class Put>
    EXACT void codes(Put put) const {
        float quotients[VALUES];
        divide(scale_, quotients);
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            u32 code = encoder_.code(quotients[i]);
            if constexpr (Element::IS_FLOAT)
                code |= bits_of(x_[i]) >> 31 << Element::MAGNITUDE_BITS;  // of zeros too
            put(i, code);
        }
    }

 private:
    // Also makes zeros of blocks that cannot be quantised, or of what counts as zero.
    EXACT void find_amax() {
        u32 largest = 0;
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            const u32 bits = bits_of(x_[i]) & 0x7fffffffu;
            if (!Format::HAS_NAN && bits > INFINITE_BITS) x_[i] = 0.0f;  // infinity saturates
            else largest = larger(largest, bits);
        }
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) largest = larger(largest, across(largest, i));
        lost_ = Format::HAS_NAN && largest >= INFINITE_BITS;
        if (lost_) {
            largest = 0;
#pragma unroll
            for (int i = 0; i < VALUES; ++i) x_[i] = 0.0f;
        }
        amax_ = float_of(largest);
    }

    // What is divided: floats keep their sign apart.
    EXACT float part(int i) const { return Element::IS_FLOAT ? magnitude(x_[i]) : x_[i]; }

    EXACT void divide(const BlockScale& scale, float (&quotients)[VALUES]) const {
        const Divisor<Format> divisor(scale.value, tensor_scale_);
        if (encoder_.ordinary && divisor.is_quick(x_, amax_)) {
#pragma unroll
            for (int i = 0; i < VALUES; ++i) quotients[i] = divisor.quick(part(i));
        } else {
#pragma unroll
            for (int i = 0; i < VALUES; ++i) quotients[i] = divisor.careful(part(i));
        }
    }

    static constexpr int CANDIDATES = SEARCH == FOUR_OVER_SIX ? 2 : 1 + (2 << Scale::MANTISSA);

    // The first one is the scale that the search starts from. False where the candidate is another
    // one again: codes end, and the last one has had its turn.
    EXACT bool candidate(int index, BlockScale& scale) const {
        if constexpr (SEARCH == FOUR_OVER_SIX) {
            scale = Rule::of_amax_at_four(amax_, tensor_scale_);
            return scale.value != scale_.value;
        } else {
            const int distance = (index + 1) / 2, lowest = Format::POWER_OF_TWO ? 0 : 1;
            const int code = int(scale_.code) + (index % 2 ? -distance : distance);
            const bool is_new = code >= lowest && code <= int(Scale::MAX_CODE);
            scale = Rule::of_code(is_new ? code : scale_.code);
            return is_new;
        }
    }

    EXACT void search() {
        BlockScale best = scale_;
        bool sure = search_quickly(best);
        sure |= amax_ == 0.0f;
        if (any_lane(!sure)) {
            const BlockScale exact = search_exactly();
            if (!sure) best = exact;
        }
        if (amax_ > 0.0f) scale_ = best;
    }

    struct Trial {
        float error, margin;
    };

    // Whether `best` is beyond doubt.
    EXACT bool search_quickly(BlockScale& best) const {
        Trial least = weigh(best);
        float rival = float_of(INFINITE_BITS);  // the least that another one may cost
        bool sure = true;
#pragma unroll 1
        for (int index = 1; index < CANDIDATES; ++index) {
            BlockScale scale;
            const bool is_new = candidate(index, scale);
            const Trial trial = weigh(scale);
            const bool better = trial.error < least.error;
            const Trial worse = better ? least : trial;
            if (!is_new) continue;
            sure &= trial.error == trial.error;  // no NaN
            rival = smaller(rival, worse.error - worse.margin);
            if (better) least = trial;
            if (better) best = scale;
        }
        return sure && least.error + least.margin < rival;
    }

    // The squared error of the block in float32, NaN where it cannot be known so; the same in all
    // lanes. With o = fp32(x - n d), at most 4 of its units in the last place and of n d's away from
    // what the definition squares, the sums differ by at most 2^-16 of themselves, and by 2^-26 of
    // the largest sum of (n d)^2.
    EXACT Trial weigh(const BlockScale& scale) const {
        const Divisor<Format> divisor(scale.value, tensor_scale_);
        const float d = divisor.value();
        float errors[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            const float off = fused(-encoder_.nearest(divisor.quick(part(i))), d, part(i));
            errors[i % 2] = fused(off, off, errors[i % 2]);
        }
        float error = errors[0] + errors[1];
        const bool known = encoder_.ordinary && divisor.is_quick(x_, amax_) && amax_ <= power_of_two(60) &&
                           d >= power_of_two(-50) && d <= power_of_two(50);
        if (!known) error = float_of(NAN_BITS);
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) error += across(error, i);
        const float most = d * Element::MAX;
        return {error, error * power_of_two(-16) + most * most * (Format::BLOCK * power_of_two(-26))};
    }

    EXACT BlockScale search_exactly() const {
        BlockScale best = scale_;
        double least = squared_error(best);
#pragma unroll 1
        for (int index = 1; index < CANDIDATES; ++index) {
            BlockScale scale;
            const bool is_new = candidate(index, scale);
            const double error = squared_error(scale);
            if (is_new && error < least) {
                least = error;
                best = scale;
            }
        }
        return best;
    }

    // Of the dequantised block; neighbours are summed first, those in other lanes last.
    EXACT double squared_error(const BlockScale& scale) const {
        const Divisor<Format> divisor(scale.value, tensor_scale_);
        double error = sum_of_squares<0, VALUES>(scale, divisor);
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) error = sum(error, across(error, i));
        return error;
    }

    template <int FIRST, int COUNT>
    EXACT double sum_of_squares(const BlockScale& scale, const Divisor<Format>& divisor) const {
        if constexpr (COUNT == 1) {
            const float value = encoder_.nearest(divisor.careful(part(FIRST)));
            const float decoded = product(product(value, scale.value), tensor_scale_);
            const double off = difference(double(part(FIRST)), double(decoded));
            return product(off, off);
        } else {
            return sum(sum_of_squares<FIRST, COUNT / 2>(scale, divisor),
                       sum_of_squares<FIRST + COUNT / 2, COUNT / 2>(scale, divisor));
        }
    }

    float (&x_)[VALUES];  // finite, or infinities that saturate
    const float tensor_scale_;
    const Encoder& encoder_;
    float amax_;
    bool lost_;  // there is a NaN or an infinity, and the scale can tell
    BlockScale scale_;
};
