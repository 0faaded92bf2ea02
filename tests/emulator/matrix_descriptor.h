// Where a matrix descriptor of shared memory says that an element lies, bit by bit as the PTX manual has it.
//
// Independent of how ptx/ writes descriptors: no constant is shared.
#pragma once
#include "shared_memory.h"

namespace bs::emulator {

inline u64 bits_of_descriptor(u64 descriptor, int first, int last) {
    return descriptor >> first & ((1ull << (last - first + 1)) - 1);
}

// Bytes of a row in which 16-byte pieces change places, or 0.
struct MatrixDescriptor {
    u32 start, leading, stride;  // bytes
    u32 swizzle;                 // bytes: 0, 32, 64 or 128
    u32 base_offset;

    // A K-major operand: rows of M or N, bytes along k. `absolute` leading offsets (K = 96) are not modelled.
    u32 k_major(u32 row, u32 byte) const {
        if (!swizzle) return start + byte / 16 * leading + row / 8 * stride + row % 8 * 16 + byte % 16;
        return swizzled(start + row / 8 * stride + row % 8 * swizzle + byte, swizzle);
    }

    // The pieces of 16 bytes of eight rows change places by the address bits that count rows of 128 bytes.
    static u32 swizzled(u32 address, u32 width) {
        const u32 pieces = width / 16;  // 2, 4 or 8
        return address ^ (address >> 7 & (pieces - 1)) << 4;
    }
};

inline MatrixDescriptor decode_common(u64 d) {
    MatrixDescriptor m;
    m.start = u32(bits_of_descriptor(d, 0, 13)) << 4;
    m.leading = u32(bits_of_descriptor(d, 16, 29)) << 4;
    m.stride = u32(bits_of_descriptor(d, 32, 45)) << 4;
    m.base_offset = u32(bits_of_descriptor(d, 49, 51));
    BS_REQUIRE(bits_of_descriptor(d, 14, 15) == 0 && bits_of_descriptor(d, 30, 31) == 0,
               "matrix descriptor %016llx has bits where there are none", d);
    BS_REQUIRE(m.base_offset == 0, "matrix descriptor %016llx has a base offset, which is not modelled", d);
    return m;
}

// wgmma's: the swizzle has two bits.
inline MatrixDescriptor decode_wgmma(u64 d) {
    static constexpr u32 WIDTHS[4] = {0, 128, 64, 32};
    MatrixDescriptor m = decode_common(d);
    m.swizzle = WIDTHS[bits_of_descriptor(d, 62, 63)];
    BS_REQUIRE(bits_of_descriptor(d, 46, 48) == 0 && bits_of_descriptor(d, 52, 61) == 0,
               "matrix descriptor %016llx of wgmma has bits where there are none", d);
    return m;
}

// tcgen05's: three bits of swizzle, and a constant where wgmma has none.
inline MatrixDescriptor decode_tcgen05(u64 d) {
    static constexpr u32 WIDTHS[8] = {0, 1, 128, 1, 64, 1, 32, 1};
    MatrixDescriptor m = decode_common(d);
    m.swizzle = WIDTHS[bits_of_descriptor(d, 61, 63)];
    BS_REQUIRE(m.swizzle != 1, "matrix descriptor %016llx has a swizzle that is illegal or not modelled", d);
    BS_REQUIRE(bits_of_descriptor(d, 46, 48) == 1, "matrix descriptor %016llx of tcgen05 lacks 001 in bits 46 to 48", d);
    BS_REQUIRE(bits_of_descriptor(d, 52, 60) == 0, "matrix descriptor %016llx has bits 52 to 60, which are not modelled", d);
    return m;
}

}  // namespace bs::emulator
