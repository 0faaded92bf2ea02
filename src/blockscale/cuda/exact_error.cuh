// The squared error of a block by the definition, which sums float64: by all lanes of a warp together.
//
// It is asked for where float32 leaves a doubt, in one block of some hundred. So its own speed hardly counts, but its
// length does: instructions of one warp in doubt would drive those of all others out of their cache.
#pragma once
#include "divisor.cuh"
#include "lanes.cuh"

// The numbers of one block and their weights, in the lanes that sum them. BLOCK / VALUES lanes hold it; small blocks are
// handed over to all lanes through shared memory.
template <class Format, int VALUES, class Weights>
class SharedBlock {
    static constexpr int LANES = Format::BLOCK / VALUES;
    static constexpr bool MOVES = LANES < LANES_OF_WARP && Format::BLOCK <= 64;
    // Numbers of a lane. Of blocks of fewer numbers than lanes, several lanes have the same.
    static constexpr int EACH = !MOVES ? VALUES : Format::BLOCK > LANES_OF_WARP ? Format::BLOCK / LANES_OF_WARP : 1;

 public:
    // Of a warp.
    struct Memory {
        float x[MOVES ? Format::BLOCK : 1], weight[MOVES && !Weights::ALIKE ? Format::BLOCK : 1];
    };

    // All lanes take part. Of the block that lane `holder` and those after it hold: x[i] and its weight in each.
    EXACT SharedBlock(const float (&x)[VALUES], const Weights& weights, int holder, Memory& memory) {
        if constexpr (MOVES) {
            const int first = (lane_number() - holder) * VALUES;
            meet_warp();  // an earlier block has been read
            if (first >= 0 && first < Format::BLOCK)
#pragma unroll
                for (int i = 0; i < VALUES; ++i) {
                    memory.x[first + i] = x[i];
                    if constexpr (!Weights::ALIKE) memory.weight[first + i] = weights.of(i);
                }
            meet_warp();
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int from = MOVES ? (lane_number() * EACH + i) % Format::BLOCK : i;
            x_[i] = MOVES ? memory.x[from] : x[from];
            weight_[i] = !MOVES || Weights::ALIKE ? weights.of(i) : memory.weight[from];
        }
    }

    // Of the dequantised block; neighbours are summed first, those in other lanes last. Right in lanes that hold the
    // block, and where it was handed over in all.
    template <class Encoder>
    EXACT double squared_error(float scale, float tensor_scale, const Encoder& encoder) const {
        const Divisor<Format> by(scale, tensor_scale);
        double error = sum_of_squares<0, EACH>(scale, tensor_scale, by, encoder);
#pragma unroll
        for (int i = 1; i < Format::BLOCK / EACH; i *= 2) error = sum(error, across(error, i));
        return error;
    }

 private:
    template <int FIRST, int COUNT, class Encoder>
    EXACT double sum_of_squares(float scale, float tensor_scale, const Divisor<Format>& by,
                                const Encoder& encoder) const {
        if constexpr (COUNT == 1) {
            using Element = typename Format::Element;
            const float x = Element::IS_FLOAT ? magnitude(x_[FIRST]) : x_[FIRST];
            const float value = encoder.nearest(Element::saturated(by.careful(x)));
            const float decoded = product(product(value, scale), tensor_scale);
            return Weights::square(weight_[FIRST], difference(double(x), double(decoded)));
        } else {
            return sum(sum_of_squares<FIRST, COUNT / 2>(scale, tensor_scale, by, encoder),
                       sum_of_squares<FIRST + COUNT / 2, COUNT / 2>(scale, tensor_scale, by, encoder));
        }
    }

    float x_[EACH], weight_[EACH];
};
