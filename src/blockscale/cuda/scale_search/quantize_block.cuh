// Codes of one block under its scale, shared by adjacent lanes: blockscale/numerics/quantize.py. Its steps
// and its roundings are the same, so its bits are the same.
#pragma once
#include "scale_search/block_numbers.cuh"
#include "scale_search/divisor.cuh"

namespace bs::scale_search {

using namespace numbers;  // the arithmetic and the formats that a search is written in

template <class Format, int VALUES, class Encoder>
class BlockQuantizer {
 public:
    using Element = typename Format::Element;
    using Scale = typename Format::Scale;
    static constexpr int COUNT = VALUES;
    static constexpr bool HAS_INTERVALS = Encoder::HAS_INTERVALS;

    BS_DEVICE BlockQuantizer(const BlockNumbers<Format, VALUES>& numbers, const BlockScale& scale,
                         float tensor_scale, const Encoder& encoder)
        : x_(numbers.x), amax_(numbers.amax), lost_(numbers.lost), scale_(scale),
          divisor_(scale.value, tensor_scale), encoder_(encoder),
          usual_(numbers.usual & divisor_.is_usual()) {}

    // The bits of the scale, as stored.
    BS_DEVICE u32 scale() const {
        if (lost_) return Scale::NAN_CODE;
        return Format::WIDE_SCALE ? bits_of(scale_.value) : scale_.code;
    }

    // put(i, a, b) for each pair: the codes of numbers i and i + 1, as the encoder places them; without the
    // sign, if it is put elsewhere. PRECISION: bits of a number.
    template <int PRECISION, bool SIGNED, class Put>
    BS_DEVICE void codes(Put put) const {
        if constexpr (Element::IN_STEPS) {
            if (usual_ & divisor_.fits(amax_) & divisor_.template has_products<PRECISION>()) {
#pragma unroll
                for (int i = 0; i < VALUES; i += 2)
                    put(i, with_sign<SIGNED>(i, Element::placed_product(part(i), divisor_.inverse())),
                        with_sign<SIGNED>(i + 1, Element::placed_product(part(i + 1), divisor_.inverse())));
                return;
            }
        }
        // Where most codebooks do without a quotient, the others need not come quickly, but in little code.
        const bool is_quick = !HAS_INTERVALS && (encoder_.ordinary & usual_) && divisor_.is_quick(x_);
#pragma unroll
        for (int first = 0; first < VALUES; first += STEP) {
            float quotients[STEP];
            divide(first, is_quick, quotients);
#pragma unroll
            for (int i = 0; i < STEP; i += 2)
                put(first + i, with_sign<SIGNED>(first + i, encoder_.placed_code(quotients[i])),
                    with_sign<SIGNED>(first + i + 1, encoder_.placed_code(quotients[i + 1])));
        }
    }

    // Whether the codebook leaves anything to `near_codes`.
    BS_DEVICE bool may_be_near() const { return encoder_.in_intervals; }

    // As `codes`, in fewer instructions, for codes of a codebook; false where they are not known so.
    template <class Put>
    BS_DEVICE bool near_codes(Put put) const {
        bool ambiguous = false;
#pragma unroll
        for (int i = 0; i < VALUES; i += 2)
            put(i, encoder_.near_code(x_[i], divisor_.inverse(), ambiguous),
                encoder_.near_code(x_[i + 1], divisor_.inverse(), ambiguous));
        const bool is_near = divisor_.fits(amax_, Encoder::NEAR);
        return (usual_ & is_near) && !ambiguous && divisor_.is_quick(x_);
    }

 private:
    template <bool SIGNED>
    BS_DEVICE u32 with_sign(int i, u32 placed) const {
        constexpr u32 SIGN = 1u << (Encoder::PLACE + Format::BITS - 1);
        if constexpr (Element::IS_FLOAT && SIGNED)  // of zeros too
            return ptx::mad_lo(bits_of(x_[i]) >> 31, SIGN, placed);
        else
            return placed;
    }

    // What is divided: floats keep their sign apart.
    BS_DEVICE float part(int i) const { return Element::IS_FLOAT ? magnitude(x_[i]) : x_[i]; }

    // Quotients that are known at a time: few, where codes take registers of their own.
    static constexpr int STEP = !Element::IS_FLOAT && VALUES > 8 ? 8 : VALUES;

    // Saturated. Three ways, so that what nearly all blocks take is short.
    BS_DEVICE void divide(int first, bool is_quick, float (&quotients)[STEP]) const {
        if (is_quick && (!Element::IS_FLOAT || divisor_.fits(amax_))) {
#pragma unroll
            for (int i = 0; i < STEP; ++i) quotients[i] = divisor_.quick(part(first + i));
        } else if (is_quick) {
#pragma unroll
            for (int i = 0; i < STEP; ++i)
                quotients[i] = Element::saturated(divisor_.quick(part(first + i)));
        } else {
#pragma unroll
            for (int i = 0; i < STEP; ++i)
                quotients[i] = Element::saturated(divisor_.careful(part(first + i)));
        }
    }

    const float (&x_)[VALUES];
    const float amax_;
    const bool lost_;
    const BlockScale scale_;
    const Divisor<Format> divisor_;
    const Encoder& encoder_;
    const bool usual_;
};

// The codes of a block into a packed run, whose numbers they are from `first` on. All lanes of a warp take
// part.
template <class Block, class Run, class Packed>
BS_DEVICE void put_codes(const Block& block, const Run& run, Packed& packed, int first) {
    const auto put_pair = [&](int i, u32 even, u32 odd) { packed.put_pair(first + i, even, odd); };
    if constexpr (Packed::TAKES_SIGNS && Block::Element::IS_FLOAT && Block::COUNT % 8 == 0) {
#pragma unroll
        for (int i = 0; i < Block::COUNT; i += 8) packed.put_signs(first + i, run.signs(first + i));
        block.template codes<Run::PRECISION, false>(put_pair);
    } else if constexpr (Block::HAS_INTERVALS) {
        Packed near = packed;
        const auto put_near = [&](int i, u32 even, u32 odd) { near.put_pair(first + i, even, odd); };
        // If a code of any lane is ambiguous, all lanes begin again: near codes need not be kept meanwhile.
        if (!block.may_be_near() || ptx::any_lane(!block.near_codes(put_near)))
            block.template codes<Run::PRECISION, true>(put_pair);
        else
            packed = near;
    } else {
        block.template codes<Run::PRECISION, true>(put_pair);
    }
}

}  // namespace bs::scale_search
