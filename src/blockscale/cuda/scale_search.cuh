// Choosing the scale of a block by its squared error: blockscale/numerics/quantize.py.
//
// Candidates are weighed by float32 sums, whose distance from the float64 sums of the definition is bounded.
// Where the best of them is not the best beyond doubt, the definition decides: between two, as a rule. Scales
// that differ by a factor of two often dequantise a block to the same numbers, and the earlier one wins.
#pragma once
#include "block_numbers.cuh"
#include "divisor.cuh"
#include "weights.cuh"

// How candidates for a block's scale are found; the earlier one wins a tie.
enum Search { FROM_AMAX, NEIGHBOURS, FOUR_OVER_SIX };

template <class Format, class Rule, Search SEARCH, int VALUES, class Encoder, class Weights>
class ScaleSearch {
 public:
    using Element = typename Format::Element;
    using Scale = typename Format::Scale;
    static constexpr int LANES = Format::BLOCK / VALUES;

    EXACT ScaleSearch(const BlockNumbers<Format, VALUES>& numbers, const Weights& weights, const Rule& rule,
                      const BlockScale& start, const Encoder& encoder)
        : x_(numbers.x), amax_(numbers.amax), weights_(weights), rule_(rule), start_(start),
          encoder_(encoder) {
        const float d = product(start.value, rule.tensor_scale());
        const bool in_range = (d >= 16.0f / Weights::RANGE) & (d <= Weights::RANGE / 16.0f);
        known_ = numbers.usual & rule.is_usual() & encoder.ordinary & weights.is_usual() & in_range &
                 (amax_ <= Weights::AMAX);
        margin_ = sum_of_squares_of_x() * (3.25f * power_of_two(-26));
    }

    // All lanes of a warp take part. `is_open` is false where any scale will do.
    EXACT BlockScale best(bool is_open) {
        if constexpr (SEARCH == FOUR_OVER_SIX)
            weigh_both();
        else
            weigh_neighbours();
        BlockScale scale = again(first_.scale);
        const bool in_doubt = is_open && !(known_ && first_.most < second_.least);
        if (any_lane(in_doubt)) {
            const BlockScale rival = again(second_.scale);
            const bool between_two = known_ && first_.most < others_least_ && divisor(scale).is_quick(x_) &&
                                     divisor(rival).is_quick(x_);
            const BlockScale exact =
                any_lane(in_doubt && !between_two) ? search_exactly() : better_of(scale, rival);
            if (in_doubt) scale = exact;
        }
        return scale;
    }

 private:
    // What a candidate costs at least and at most.
    struct Trial {
        BlockScale scale = {0.0f, 0};
        float least = float_of(INFINITE_BITS), most = least;
    };

    // Codes alone are remembered where they say all.
    static EXACT BlockScale again(const BlockScale& scale) {
        if constexpr (SEARCH == NEIGHBOURS) return Rule::of_code(scale.code);
        else return scale;
    }

    EXACT Divisor<Format> divisor(const BlockScale& scale) const {
        return Divisor<Format>(scale.value, rule_.tensor_scale());
    }

    // What is divided: floats keep their sign apart.
    EXACT float part(int i) const { return Element::IS_FLOAT ? magnitude(x_[i]) : x_[i]; }

    // The squared error of the block in float32, the same in all lanes. With o = fp32(x - n d): n is as near
    // to x / d as the definition's but for 2^-22 of x, and n d is its product but for 1.5 * 2^-23 of it. So
    // o^2 is off by 3.5 * 2^-22 |o x|, at most 2^-18 o^2 + 3.1 * 2^-26 x^2; and each of the operations that
    // follow is rounded.
    template <Reach REACH>
    EXACT Trial weigh(const BlockScale& scale) const {
        if constexpr (REACH != ANYWHERE && Encoder::HAS_INTERVALS)
            if (!encoder_.in_intervals) return weigh<ANYWHERE>(scale);
        const auto by = divisor(scale);
        const float d = by.value(), r = Format::POWER_OF_TWO ? by.inverse() : refined(by.inverse(), d);
        float errors[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            const float off = encoder_.template off<REACH>(part(i), d, r);
            errors[i % 2] = weights_.quick_square(i, off, errors[i % 2]);
        }
        float error = errors[0] + errors[1];
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) error += across(error, i);
        constexpr float SHARE = power_of_two(-18) + (VALUES / 2 + 12) * power_of_two(-24);
        return {scale, error * (1.0f - SHARE) - margin_, error * (1.0f + SHARE) + margin_};
    }

    // Or more, in searches among few candidates, which have fewer doubts.
    EXACT float sum_of_squares_of_x() const {
        if constexpr (SEARCH == FOUR_OVER_SIX) return amax_ * amax_ * weights_.total;
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES; ++i) squares = weights_.quick_square(i, x_[i], squares);
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) squares += across(squares, i);
        return squares;
    }

    EXACT void consider(const Trial& trial, bool is_new) {
        if (!is_new) return;
        const bool better = trial.most < first_.most;
        const Trial worse = better ? first_ : trial;
        if (better) first_ = trial;
        others_least_ = smaller(others_least_, larger(worse.least, second_.least));
        if (worse.least < second_.least) second_ = worse;
    }

    // The other scale maps amax to 4.
    EXACT void weigh_both() {
        const BlockScale other = rule_.template of_amax_at_four<true>(amax_);
        const bool plain = divisor(start_).fits(amax_) & is_up_to_four(other);
        const bool is_new = other.value != start_.value;
        if (any_lane(known_ && !plain)) {
            first_ = weigh<BEYOND>(start_);
            consider(weigh<BEYOND>(other), is_new);
        } else {
            first_ = weigh<UP_TO_LARGEST>(start_);
            consider(weigh<UP_TO_FOUR>(other), is_new);
        }
    }

    EXACT bool is_up_to_four(const BlockScale& scale) const {
        return product(amax_, divisor(scale).inverse()) < Element::KEPT_TO_FOUR;
    }

    static constexpr int DISTANCE = SEARCH == NEIGHBOURS ? 1 << Scale::MANTISSA : 0;
    static constexpr int LOWEST = Format::POWER_OF_TWO ? 0 : 1;

    // Below, until the largest number alone costs too much; it fits into all scales above.
    EXACT void weigh_neighbours() {
        first_ = weigh<BEYOND>(start_);
#pragma unroll 1
        for (int code = int(start_.code) - 1; ; --code) {
            const bool is_new = (code >= LOWEST) & (code >= int(start_.code) - DISTANCE);
            const BlockScale scale = Rule::of_code(is_new ? code : start_.code);
            const float least = error_of_amax(scale);
            if (!any_lane(is_new && !(least > first_.most))) {
                if (is_new) others_least_ = smaller(others_least_, least);
                break;
            }
            consider(weigh<BEYOND>(scale), is_new);
        }
#pragma unroll 1
        for (int code = int(start_.code) + 1; ; ++code) {
            const bool is_new = (code <= int(Scale::MAX_CODE)) & (code <= int(start_.code) + DISTANCE);
            if (!any_lane(is_new)) break;
            const BlockScale scale = Rule::of_code(is_new ? code : start_.code);
            if (Element::IN_STEPS && !any_lane(is_new && !is_up_to_four(scale)))
                consider(weigh<UP_TO_FOUR>(scale), is_new);
            else
                consider(weigh<UP_TO_LARGEST>(scale), is_new);
        }
    }

    // At least, where a scale is too small for the largest number: the smaller, the more.
    EXACT float error_of_amax(const BlockScale& scale) const {
        const float beyond = amax_ - scale.value * rule_.tensor_scale() * Element::MAX;
        const bool clear = Weights::ALIKE & (beyond > amax_ * power_of_two(-8));
        return clear ? beyond * beyond * 0.99f : 0.0f;
    }

    static constexpr int CANDIDATES = SEARCH == FOUR_OVER_SIX ? 2 : 1 + 2 * DISTANCE;

    // In the order of the definition. False where the candidate is another one again: codes end, and the
    // last one has had its turn.
    EXACT bool candidate(int index, BlockScale& scale) const {
        if constexpr (SEARCH == FOUR_OVER_SIX) {
            scale = index ? rule_.template of_amax_at_four<false>(amax_) : start_;
            return index == 0 || scale.value != start_.value;
        } else {
            const int distance = (index + 1) / 2;
            const int code = int(start_.code) + (index % 2 ? -distance : distance);
            const bool is_new = code >= LOWEST && code <= int(Scale::MAX_CODE);
            scale = is_new && index ? Rule::of_code(code) : start_;
            return is_new || index == 0;
        }
    }

    EXACT BlockScale search_exactly() const {
        BlockScale best = start_;
        double least = 0.0;
#pragma unroll 1
        for (int index = 0; index < CANDIDATES; ++index) {
            BlockScale scale;
            const bool is_new = candidate(index, scale);
            const double error = squared_error<false>(scale);
            if (index == 0 || (is_new && error < least)) {
                least = error;
                best = scale;
            }
        }
        return best;
    }

    EXACT BlockScale better_of(const BlockScale& a, const BlockScale& b) const {
        double error_of_a = 0.0, error_of_b = 0.0;
#pragma unroll 1
        for (int i = 0; i < 2; ++i) {  // one after the other takes fewer registers
            error_of_a = error_of_b;
            error_of_b = squared_error<true>(i ? b : a);
        }
        const bool is_a = error_of_a == error_of_b ? turn_of(a) < turn_of(b) : error_of_a < error_of_b;
        return is_a ? a : b;
    }

    // When a candidate is looked at.
    EXACT int turn_of(const BlockScale& scale) const {
        if constexpr (SEARCH == FOUR_OVER_SIX) return scale.value != start_.value;
        const int distance = int(scale.code) - int(start_.code);
        return distance < 0 ? -2 * distance - 1 : 2 * distance;
    }

    // Of the dequantised block; neighbours are summed first, those in other lanes last. QUICK: by a divisor
    // that is.
    template <bool QUICK>
    EXACT double squared_error(const BlockScale& scale) const {
        double error = sum_of_squares<QUICK, 0, VALUES>(scale, divisor(scale));
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) error = sum(error, across(error, i));
        return error;
    }

    template <bool QUICK, int FIRST, int COUNT>
    EXACT double sum_of_squares(const BlockScale& scale, const Divisor<Format>& by) const {
        if constexpr (COUNT == 1) {
            const float x = part(FIRST), quotient = QUICK ? by.quick(x) : by.careful(x);
            const float value = encoder_.nearest(Element::saturated(quotient));
            const float decoded = product(product(value, scale.value), rule_.tensor_scale());
            return weights_.square(FIRST, difference(double(x), double(decoded)));
        } else {
            return sum(sum_of_squares<QUICK, FIRST, COUNT / 2>(scale, by),
                       sum_of_squares<QUICK, FIRST + COUNT / 2, COUNT / 2>(scale, by));
        }
    }

    const float (&x_)[VALUES];
    const float amax_;
    const Weights& weights_;
    const Rule& rule_;
    const BlockScale& start_;
    const Encoder& encoder_;
    bool known_;    // float32 holds the errors of all candidates
    float margin_;  // of an error, besides a share of it
    Trial first_, second_;
    float others_least_ = float_of(INFINITE_BITS);
};

// The scale of a block by a rule and a search.
template <Search SEARCH, class Format, int VALUES, class Weights, class Rule, class Encoder>
EXACT BlockScale choose_scale(const BlockNumbers<Format, VALUES>& numbers, const Weights& weights,
                              const Rule& rule, const Encoder& encoder) {
    BlockScale scale = rule.template of_amax<true>(numbers.amax);
    if (!(numbers.usual & rule.is_usual())) scale = rule.template of_amax<false>(numbers.amax);
    if constexpr (SEARCH != FROM_AMAX) {
        const bool is_open = numbers.amax > 0.0f && !numbers.lost;
        using Searching = ScaleSearch<Format, Rule, SEARCH, VALUES, Encoder, Weights>;
        const BlockScale best = Searching(numbers, weights, rule, scale, encoder).best(is_open);
        if (is_open) scale = best;
    }
    return scale;
}
