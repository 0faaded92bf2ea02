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

// Of a GEMM whose shared memory has TABLES_BYTES for the tables of its branches, or none. That of 5 bits has the positive
// half: other than symmetric tables stay in registers, and the room, if there is any, is left empty.
template <class X, class Format, int BRANCHES, int TABLES_BYTES>
struct DecoderOf {
    static constexpr bool SHARED = TABLES_BYTES > 0 && (Format::BITS < 5 || Format::SYMMETRIC);
    using Type = typename Either<SHARED, SharedTable<X, Format::BITS, Format::SYMMETRIC, TABLES_BYTES / TABLE_BYTES>,
                                 Decoder<X, Format::ELEMENT, Format::BITS, Format::SYMMETRIC>>::Type;
    static_assert(TABLES_BYTES % TABLE_BYTES == 0, "whole tables");
    static_assert(TABLES_BYTES == 0 || TABLES_BYTES >= BRANCHES * TABLE_BYTES, "one for each branch");
    static_assert(TABLES_BYTES == 0 || Format::ELEMENT == TABLE, "floats need no table");
};

// Of activations whose codes the GEMM decodes itself.
template <Scale SCALE_OF_BLOCKS, int VALUES_OF_BLOCK>
struct BlockScales {
    static constexpr Scale SCALE = SCALE_OF_BLOCKS;
    static constexpr int BLOCK = VALUES_OF_BLOCK;
};

}  // namespace bs::decode
