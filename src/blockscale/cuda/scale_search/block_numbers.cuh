// The numbers of one block in the lanes that share it.
#pragma once
#include "scale_search/block_scale.cuh"
#include "ptx/warp.cuh"

namespace bs::scale_search {

using namespace numbers;  // the arithmetic and the formats that a search is written in

// A lane's numbers of one block: finite, or infinities that saturate.
template <class Format, int VALUES>
struct BlockNumbers {
    static constexpr int LANES = Format::BLOCK / VALUES;
    float x[VALUES], amax;
    bool usual;  // neither zero nor near the ends of float32's range
    bool lost;   // there is a NaN or an infinity, and the scale can tell: no number counts

    // Codes of lost numbers are zeros in the end, whatever they were; a codebook has others for zero.
    static constexpr bool ZERO_CODES = Format::HAS_NAN && Format::Element::IS_FLOAT;

    // Of a run that holds more: those from `first` on. Where a scale cannot tell, NaN counts as zero.
    // Numbers that become zero are so in the run too.
    template <class Run>
    BS_DEVICE BlockNumbers(Run& run, int first) {
        u32 largest = across_block(run.largest(first, VALUES));
        lost = Format::HAS_NAN && largest >= INFINITE_BITS;
        if (!ZERO_CODES && ptx::any_lane(largest >= INFINITE_BITS)) {
            if (lost) run.clear(first, VALUES);
            run.clear_nan(first, VALUES);
            largest = across_block(run.largest(first, VALUES));
        }
        amax = float_of(largest);
        usual = (amax >= LEAST_USUAL) & (amax <= MOST_USUAL);
#pragma unroll
        for (int i = 0; i < VALUES; ++i) x[i] = run[first + i];
    }

 private:
    static BS_DEVICE u32 across_block(u32 largest) {
#pragma unroll
        for (int i = 1; i < LANES; i *= 2) largest = larger(largest, ptx::shfl_xor(largest, i));
        return largest;
    }
};

}  // namespace bs::scale_search
