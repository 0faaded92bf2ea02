// The format of weights as the GEMMs read them: what a code and a scale mean, and how many values share a scale.
#pragma once
#include "decode/scales.cuh"
#include "decode/shared_table.cuh"

namespace bs::decode {

template <Element ELEMENT_OF_CODES, int BITS_OF_CODES, Scale SCALE_OF_BLOCKS, int VALUES_OF_BLOCK, bool HALVES_MIRROR>
struct WeightFormat {
    static constexpr Element ELEMENT = ELEMENT_OF_CODES;
    static constexpr Scale SCALE = SCALE_OF_BLOCKS;
    static constexpr int BITS = BITS_OF_CODES;
    static constexpr int BLOCK = VALUES_OF_BLOCK;      // 16 or 32
    static constexpr bool SYMMETRIC = HALVES_MIRROR;   // the lower half of a table mirrors its upper half
    static constexpr int UNIT_BYTES = 128 * BITS;      // codes of a tile of 16 rows and a unit of 64 k
    static constexpr int UNITS_PER_GROUP = BLOCK / 8;  // units of 64 k whose scales stand together
};

// Of activations whose codes the GEMM decodes itself.
template <Scale SCALE_OF_BLOCKS, int VALUES_OF_BLOCK>
struct BlockScales {
    static constexpr Scale SCALE = SCALE_OF_BLOCKS;
    static constexpr int BLOCK = VALUES_OF_BLOCK;
};

}  // namespace bs::decode
