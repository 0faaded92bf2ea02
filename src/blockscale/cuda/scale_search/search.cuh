// Choosing the scale of a block by its squared error: blockscale/numerics/quantize.py.
//
// Candidates are weighed by float32 sums, whose distance from the float64 sums of the definition is bounded.
// Where these bounds leave the best one ambiguous, the definition decides: between two, as a rule. Scales
// that differ by a factor of two often dequantise a block to the same numbers, and the earlier one wins.
// Neighbours are weighed some at a time, with one lookup for each number: see brackets.cuh.
#pragma once
#include "scale_search/block_numbers.cuh"
#include "scale_search/brackets.cuh"
#include "scale_search/divisor.cuh"
#include "scale_search/importance.cuh"

namespace bs::scale_search {

using namespace numbers;  // the arithmetic and the formats that a search is written in

template <class Format, class Rule, Search SEARCH, int VALUES, class Encoder, class Near, class Weights>
class ScaleSearch {
 public:
    using Element = typename Format::Element;
    using Scale = typename Format::Scale;
    static constexpr int LANES = Format::BLOCK / VALUES;

    BS_DEVICE ScaleSearch(const BlockNumbers<Format, VALUES>& numbers, const Weights& weights, const Rule& rule,
                      const BlockScale& start, const Encoder& encoder, const Near& near)
        : x_(numbers.x), amax_(numbers.amax), weights_(weights), rule_(rule), start_(start),
          encoder_(encoder), near_(near) {
        const auto by = divisor(start);
        const bool in_range = (by.value() >= 16.0f / Weights::RANGE) & (by.value() <= Weights::RANGE / 16.0f);
        usual_ = numbers.usual & rule.is_usual() & encoder.ordinary;
        known_ = usual_ & weights.is_usual() & in_range & (amax_ <= Weights::AMAX);
        // The smallest scales are too far apart for brackets; the largest may be too small for a block.
        if constexpr (Near::EXIST)
            known_ = known_ & near.fit & (start.code >= u32(2 * DISTANCE)) & by.fits(amax_);
        margin_ = (sum_of_squares_of_x() * OF_SQUARES + amax_ * amax_ * weights_.total * OF_AMAX) *
                  power_of_two(-26);
    }

    // All lanes of a warp take part. `is_open` is false where any scale will do.
    BS_DEVICE BlockScale best(bool is_open) {
        if constexpr (SEARCH == FOUR_OVER_SIX)
            weigh_both();
        else
            weigh_neighbours();
        BlockScale scale = scale_of(first_);
        const bool ambiguous = is_open && !(known_ && most(first_) < least(second_));
        if (ptx::any_lane(ambiguous)) {
            const bool between_two = known_ && most(first_) < least(third_);
            const BlockScale exact = decide(ambiguous, ptx::any_lane(ambiguous && !between_two));
            if (ambiguous) scale = exact;
        }
        return scale;
    }

 private:
    // A candidate and what it costs: the bits of its error as a float32, which is not negative, so that
    // they have its order. The last ones are those of its code; or of its turn, where there are two.
    using Trial = u32;
    static constexpr int DISTANCE = SEARCH == NEIGHBOURS ? 1 << Scale::MANTISSA : 0;
    static constexpr int CANDIDATES = SEARCH == FOUR_OVER_SIX ? 2 : 1 + 2 * DISTANCE;
    static constexpr u32 NAMES = CANDIDATES <= 2 ? 2 : CANDIDATES <= 4 ? 4 : CANDIDATES <= 32 ? 32 : 64;
    static_assert(CANDIDATES <= NAMES, "no two have the same last bits");

    // What the error of the definition is at least and at most: see `weigh` and `weigh_group`.
    static constexpr float SHARE =
        power_of_two(-17) + (VALUES + 24) * power_of_two(-24) + NAMES * power_of_two(-23);
    BS_DEVICE float least(Trial trial) const { return float_of(trial) * (1.0f - SHARE) - margin_; }
    BS_DEVICE float most(Trial trial) const { return float_of(trial) * (1.0f + SHARE) + margin_; }

    BS_DEVICE BlockScale scale_of(Trial trial) const {
        if constexpr (SEARCH == FOUR_OVER_SIX) return trial % 2 ? other_ : start_;
        else return Rule::of_code(start_.code + away(trial));
    }

    // How far its code is from the first one.
    BS_DEVICE int away(Trial trial) const {
        constexpr int HALF = NAMES / 2;
        return int((trial - start_.code + HALF) % NAMES) - HALF;
    }

    BS_DEVICE Divisor<Format> divisor(const BlockScale& scale) const {
        return Divisor<Format>(scale.value, rule_.tensor_scale());
    }

    // What is divided: floats keep their sign apart.
    BS_DEVICE float part(int i) const { return Element::IS_FLOAT ? magnitude(x_[i]) : x_[i]; }

    BS_DEVICE static float across_block(float total) {
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) total += ptx::shfl_xor(total, i);
        return total;
    }

    // The squared error of the block in float32, the same in all lanes. With o = fp32(x - n d): n is as near
    // to x / d as the definition's but for 2^-22 of x, and n d is its product but for 1.5 * 2^-23 of it. So
    // o^2 is off by 3.5 * 2^-22 |o x|, at most 2^-18 o^2 + 3.1 * 2^-26 x^2; and each of the operations that
    // follow is rounded.
    template <Reach REACH>
    BS_DEVICE float weigh(const BlockScale& scale) const {
        const auto by = divisor(scale);
        const float d = by.value(), r = Format::POWER_OF_TWO ? by.inverse() : refined(by.inverse(), d);
        float errors[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            const float off = encoder_.template off<REACH>(part(i), d, r);
            errors[i % 2] = weights_.quick_square(i, off, errors[i % 2]);
        }
        return across_block(errors[0] + errors[1]);
    }

    // Those of scales that share lookups, the largest first. In units of d and of 2^-24, with q = x / d, n the
    // value of the definition, and c the larger one of a bracket: n is as near as the nearest but for 2 |q|,
    // and what it dequantises to is n but for 3 |n|; q is off by 5 |q|, as r is; and the roundings of middle,
    // half and the two differences are up to 2 c + 2 |o|. With |n| up to |q| + |o|, o is off by
    // 10 |q| + 2 c + 5 |o|. All values times d are up to 2.13 amax: the largest scale is twice the first one,
    // which rounding made larger by a sixteenth at most; or up to 4 amax where scales are powers of two. So
    // o^2 is off by 10 * 2^-24 o^2, and by 2^-23 |o| (10 |x| + 4.3 amax), which is at most
    // 2^-17 o^2 + 2^-31 (200 x^2 + 37 amax^2), or 128 for 37.
    static constexpr int GROUP = Near::GROUP;
    static constexpr float OF_SQUARES = Near::EXIST ? 6.5f : 3.25f;
    static constexpr float OF_AMAX = !Near::EXIST ? 0.0f : Format::POWER_OF_TWO ? 4.25f : 1.25f;

    BS_DEVICE void weigh_group(u32 code, float (&errors)[GROUP]) const {
        float d[GROUP], r[GROUP];
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
            const auto by = divisor(Rule::of_code(code - i));
            d[i] = by.value();
            r[i] = by.inverse();
            errors[i] = 0.0f;
        }
#pragma unroll
        for (int k = 0; k < VALUES; ++k) {
            const auto bracket = near_.around(x_[k], r[0]);
#pragma unroll
            for (int i = 0; i < GROUP; ++i)
                errors[i] = weights_.quick_square(k, bracket.off(x_[k], r[i]), errors[i]);
        }
#pragma unroll
        for (int i = 0; i < GROUP; ++i) errors[i] = across_block(errors[i]) * (d[i] * d[i]);
    }

    // Or more, in searches among few candidates, which are seldom ambiguous.
    BS_DEVICE float sum_of_squares_of_x() const {
        if constexpr (SEARCH == FOUR_OVER_SIX) return amax_ * amax_ * weights_.total;
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES; ++i) squares = weights_.quick_square(i, x_[i], squares);
        return across_block(squares);
    }

    // The three best are kept.
    BS_DEVICE void consider(float error, u32 name, bool is_new) {
        const Trial trial = is_new ? (bits_of(error) & ~(NAMES - 1)) | (name & (NAMES - 1)) : INFINITE_BITS;
        const Trial worse = larger(first_, trial), worst = larger(second_, worse);
        first_ = smaller(first_, trial);
        second_ = smaller(second_, worse);
        third_ = smaller(third_, worst);
    }

    // The other scale maps amax to 4.
    BS_DEVICE void weigh_both() {
        other_ = rule_.template of_amax_at_four<true>(amax_);
        if (!usual_) other_ = rule_.template of_amax_at_four<false>(amax_);
        const bool plain = divisor(start_).fits(amax_) &
                           (product(amax_, divisor(other_).inverse()) < Element::KEPT_TO_FOUR);
        const bool is_new = other_.value != start_.value;
        if (ptx::any_lane(known_ && !plain)) {
            consider(weigh<BEYOND>(start_), 0, true);
            consider(weigh<BEYOND>(other_), 1, is_new);
        } else {
            consider(weigh<UP_TO_LARGEST>(start_), 0, true);
            consider(weigh<UP_TO_FOUR>(other_), 1, is_new);
        }
    }

    // From the largest scale on, until the largest number alone costs too much.
    BS_DEVICE void weigh_neighbours() {
        const int start = int(start_.code);
        const int highest = start + DISTANCE < int(Scale::MAX_CODE) ? start + DISTANCE : int(Scale::MAX_CODE);
        const int lowest = start - DISTANCE > LOWEST ? start - DISTANCE : LOWEST;
#pragma unroll 1
        for (int code = highest; ; code -= GROUP) {
            const float least = error_of_amax(Rule::of_code(code));
            if (!ptx::any_lane(known_ & (code >= lowest) & !(least > most(first_)))) break;
            float errors[GROUP];
            if constexpr (Near::EXIST) weigh_group(code, errors);
            else errors[0] = weigh<BEYOND>(Rule::of_code(code));
#pragma unroll
            for (int i = 0; i < GROUP; ++i) consider(errors[i], code - i, code - i >= lowest);
        }
    }

    static constexpr int LOWEST = Format::POWER_OF_TWO ? 0 : 1;

    // At least, where a scale is too small for the largest number: the smaller, the more.
    BS_DEVICE float error_of_amax(const BlockScale& scale) const {
        const float beyond = amax_ - scale.value * rule_.tensor_scale() * Element::MAX;
        const bool clear = Weights::ALIKE & (beyond > amax_ * power_of_two(-8));
        return clear ? beyond * beyond * 0.99f : 0.0f;
    }

    // In the order of the definition, which looks at scales next to the first one first, and at the smaller
    // of two. False where the candidate is another one again: codes end, and the last one has had its turn.
    BS_DEVICE bool candidate(int turn, BlockScale& scale) const {
        if constexpr (SEARCH == FOUR_OVER_SIX) {
            scale = turn ? other_ : start_;
            return turn == 0 || scale.value != start_.value;
        } else {
            const int distance = (turn + 1) / 2;
            const int code = int(start_.code) + (turn % 2 ? -distance : distance);
            const bool is_new = code >= LOWEST && code <= int(Scale::MAX_CODE);
            scale = is_new && turn ? Rule::of_code(code) : start_;
            return is_new || turn == 0;
        }
    }

    BS_DEVICE int turn_of(Trial trial) const {
        if constexpr (SEARCH == FOUR_OVER_SIX) return int(trial % 2);
        return away(trial) < 0 ? -2 * away(trial) - 1 : 2 * away(trial);
    }

    // By the definition: among all, or between the two best ones.
    BS_DEVICE BlockScale decide(bool ambiguous, bool among_all) const {
        const int one = turn_of(first_), other = turn_of(second_);
        BlockScale scale;
        int best = 0;
        double least = 0.0;
#pragma unroll 1
        for (int i = 0; i < (among_all ? CANDIDATES : 2); ++i) {
            const int turn = among_all ? i : (i == 0) == (one < other) ? one : other;
            const bool is_new = candidate(turn, scale);
            const auto by = divisor(scale);
            const bool is_quick = usual_ && by.is_usual() && by.is_quick(x_);
            const double error =
                ptx::any_lane(ambiguous && !is_quick) ? squared_error<false>(scale) : squared_error<true>(scale);
            if (i == 0 || (is_new && error < least)) {
                least = error;
                best = turn;
            }
        }
        candidate(best, scale);
        return scale;
    }

    // Of the dequantised block; neighbours are summed first, those in other lanes last. QUICK: by a divisor
    // that is.
    template <bool QUICK>
    BS_DEVICE double squared_error(const BlockScale& scale) const {
        double error = sum_of_squares<QUICK, 0, VALUES>(scale, divisor(scale));
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) error = sum(error, ptx::shfl_xor(error, i));
        return error;
    }

    template <bool QUICK, int FIRST, int COUNT>
    BS_DEVICE double sum_of_squares(const BlockScale& scale, const Divisor<Format>& by) const {
        if constexpr (COUNT == 1) {
            const float x = forgotten(part(FIRST)), quotient = QUICK ? by.quick(x) : by.careful(x);
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
    const Near& near_;
    BlockScale other_;
    bool usual_;    // quotients by usual divisors need no care
    bool known_;    // float32 holds the errors of all candidates
    float margin_;  // of an error, besides a share of it
    Trial first_ = INFINITE_BITS, second_ = INFINITE_BITS, third_ = INFINITE_BITS;
};

// The scale of a block by a rule and a search.
template <Search SEARCH, class Format, int VALUES, class Weights, class Rule, class Encoder, class Near>
BS_DEVICE BlockScale choose_scale(const BlockNumbers<Format, VALUES>& numbers, const Weights& weights,
                              const Rule& rule, const Encoder& encoder, const Near& near) {
    BlockScale scale = rule.template of_amax<true>(numbers.amax);
    if (!(numbers.usual & rule.is_usual())) scale = rule.template of_amax<false>(numbers.amax);
    if constexpr (SEARCH != FROM_AMAX) {
        const bool is_open = numbers.amax > 0.0f && !numbers.lost;
        using Searching = ScaleSearch<Format, Rule, SEARCH, VALUES, Encoder, Near, Weights>;
        const BlockScale best = Searching(numbers, weights, rule, scale, encoder, near).best(is_open);
        if (is_open) scale = best;
    }
    return scale;
}

}  // namespace bs::scale_search
