// Quantising one block, shared by adjacent lanes: blockscale/numerics/quantize.py. Its steps and its
// roundings are the same, so its bits are the same.
//
// A search weighs candidates by float32 sums, whose distance from the float64 sums of the definition
// is bounded. Where the best of them is not the best beyond doubt, the definition decides.
#pragma once
#include "block_scale.cuh"
#include "divisor.cuh"
#include "weights.cuh"

// How candidates for a block's scale are found; the earlier one wins a tie.
enum Search { FROM_AMAX, NEIGHBOURS, FOUR_OVER_SIX };

// Codes of floats, by magnitude; codebooks have a Table instead.
template <class Element>
struct FloatEncoder {
    static constexpr bool ordinary = true;
    static constexpr int SHIFT = Element::LOST;
    static EXACT u32 shifted_code(float x) { return Element::shifted_code(x); }
    static EXACT float nearest(float x) { return Element::nearest(x); }
};

// A lane's numbers of one block: finite, or infinities that saturate.
template <class Format, int VALUES>
struct BlockNumbers {
    static constexpr int LANES = Format::BLOCK / VALUES;
    float x[VALUES], amax;
    bool lost;  // there is a NaN or an infinity, and the scale can tell

    // Of a run that holds more: those from `first` on. Lost blocks become zeros in the run too.
    template <class Run>
    EXACT BlockNumbers(Run& run, int first) {
        u32 largest = across_block(run.largest(first, VALUES));
        lost = Format::HAS_NAN && largest >= INFINITE_BITS;
        if (lost) {
            run.clear(first, VALUES);
            largest = 0;
        }
#pragma unroll
        for (int i = 0; i < VALUES; ++i) x[i] = run[first + i];
        if (!Format::HAS_NAN && any_lane(largest > INFINITE_BITS)) largest = without_nan();
        amax = float_of(largest);
    }

 private:
    static EXACT u32 across_block(u32 largest) {
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) largest = larger(largest, across(largest, i));
        return largest;
    }

    // Where a scale cannot tell, NaN counts as zero.
    EXACT u32 without_nan() {
        u32 largest = 0;
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            if (bits_of(magnitude(x[i])) > INFINITE_BITS) x[i] = 0.0f;
            largest = larger(largest, bits_of(magnitude(x[i])));
        }
        return across_block(largest);
    }
};

template <class Format, class Rule, Search SEARCH, int VALUES, class Encoder, class Weights>
class BlockQuantizer {
 public:
    using Element = typename Format::Element;
    using Scale = typename Format::Scale;
    static constexpr int LANES = Format::BLOCK / VALUES;

    EXACT BlockQuantizer(const BlockNumbers<Format, VALUES>& numbers, const Weights& weights,
                         float tensor_scale, const Encoder& encoder)
        : x_(numbers.x), amax_(numbers.amax), lost_(numbers.lost), weights_(weights),
          tensor_scale_(tensor_scale), encoder_(encoder) {
        scale_ = Rule::of_amax(amax_, tensor_scale_);
        if constexpr (SEARCH != FROM_AMAX) search();
    }

    // The bits of the scale, as stored.
    EXACT u32 scale() const {
        if (lost_) return Scale::NAN_CODE;
        return Format::WIDE_SCALE ? bits_of(scale_.value) : scale_.code;
    }

    // put(i, a, b) for each pair: the codes of numbers i and i + 1, at bit Encoder::SHIFT and above.
    template <class Put>
    EXACT void codes(Put put) const {
        float quotients[VALUES];
        divide(scale_, quotients);
#pragma unroll
        for (int i = 0; i < VALUES; i += 2)
            put(i, signed_code(i, quotients[i]), signed_code(i + 1, quotients[i + 1]));
    }

    // put(i, bit, is_set) for each bit of each code of a codebook.
    template <class Put>
    EXACT void code_bits(Put put) const {
        float quotients[VALUES];
        divide(scale_, quotients);
#pragma unroll
        for (int i = 0; i < VALUES; ++i)
            encoder_.bits(quotients[i], [&](int bit, bool is_set) { put(i, bit, is_set); });
    }

 private:
    EXACT u32 signed_code(int i, float quotient) const {
        const u32 code = encoder_.shifted_code(quotient);
        if constexpr (Element::IS_FLOAT)  // of zeros too
            return multiply_add(bits_of(x_[i]) >> 31, 1u << (Encoder::SHIFT + Element::MAGNITUDE_BITS), code);
        else
            return code;
    }

    // What is divided: floats keep their sign apart.
    EXACT float part(int i) const { return Element::IS_FLOAT ? magnitude(x_[i]) : x_[i]; }

    // Saturated. Three ways, so that what nearly all blocks take is short.
    EXACT void divide(const BlockScale& scale, float (&quotients)[VALUES]) const {
        const Divisor<Format> divisor(scale.value, tensor_scale_);
        const bool quick = encoder_.ordinary && divisor.is_quick(x_, amax_);
        if (quick && divisor.fits(amax_)) {
#pragma unroll
            for (int i = 0; i < VALUES; ++i) quotients[i] = divisor.quick(part(i));
        } else if (quick) {
#pragma unroll
            for (int i = 0; i < VALUES; ++i)
                quotients[i] = Element::saturated(divisor.quick(part(i)));
        } else {
#pragma unroll
            for (int i = 0; i < VALUES; ++i)
                quotients[i] = Element::saturated(divisor.careful(part(i)));
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
            const float least_possible = error_of_amax(scale);
            if (!any_lane(is_new && !(least_possible > least.error + least.margin))) {
                if (is_new) rival = smaller(rival, least_possible);
                continue;
            }
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

    // What the largest number alone costs at least, where a scale is too small for it: most of the
    // small scales of a search need no further look.
    EXACT float error_of_amax(const BlockScale& scale) const {
        const float beyond = amax_ - scale.value * tensor_scale_ * Element::MAX;
        const bool clear = beyond > amax_ * power_of_two(-8) && amax_ <= Weights::AMAX;
        return Weights::ALIKE && clear ? beyond * beyond * 0.99f : 0.0f;
    }

    // The squared error of the block in float32, NaN where it cannot be known so; the same in all
    // lanes. With o = fp32(x - n d), at most 4 of its units in the last place and of n d's away from
    // what the definition squares, the sums differ by at most 2^-16 of themselves, and by 2^-25 of
    // the largest sum of weight (n d)^2.
    EXACT Trial weigh(const BlockScale& scale) const {
        const Divisor<Format> divisor(scale.value, tensor_scale_);
        const float d = divisor.value();
        float errors[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            const float quotient = divisor.quick(part(i));
            const float kept = SEARCH == FOUR_OVER_SIX ? quotient : Element::saturated(quotient);
            const float off = fused(-encoder_.nearest(kept), d, part(i));
            errors[i % 2] = weights_.quick_square(i, off, errors[i % 2]);
        }
        float error = errors[0] + errors[1];
        const bool known = encoder_.ordinary && divisor.is_quick(x_, amax_) && amax_ <= Weights::AMAX &&
                           d >= 1.0f / Weights::RANGE && d <= Weights::RANGE && weights_.is_usual() &&
                           (SEARCH != FOUR_OVER_SIX || divisor.fits(amax_));
        if (!known) error = float_of(NAN_BITS);
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) error += across(error, i);
        const float most = d * Element::MAX;
        return {error, error * power_of_two(-16) + most * most * (weights_.total * power_of_two(-25))};
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
            const float value = encoder_.nearest(Element::saturated(divisor.careful(part(FIRST))));
            const float decoded = product(product(value, scale.value), tensor_scale_);
            const double off = difference(double(part(FIRST)), double(decoded));
            return weights_.square(FIRST, off);
        } else {
            return sum(sum_of_squares<FIRST, COUNT / 2>(scale, divisor),
                       sum_of_squares<FIRST + COUNT / 2, COUNT / 2>(scale, divisor));
        }
    }

    const float (&x_)[VALUES];
    const float amax_;
    const bool lost_;
    const Weights& weights_;
    const float tensor_scale_;
    const Encoder& encoder_;
    BlockScale scale_;
};
