// Descriptors of tcgen05: where an operand lies in shared memory, and what an instruction multiplies. ptxas checks no bit
// of them, so that what a kernel can get wrong is asserted here.
#pragma once
#include "ptx/tcgen05.cuh"

namespace bs::ptx::tcgen05 {

// Bits of the upper word of a matrix descriptor.
constexpr u32 VERSION = 1u << 14;         // 001 in bits 46 to 48
constexpr u32 SWIZZLE_128B = 2u << 29;    // 2 in bits 61 to 63
constexpr u32 SWIZZLE_NONE = 0;
constexpr u32 units(u32 bytes) { return (bytes & 0x3FFFF) >> 4; }

// Rows of 128 bytes along k with the 128-byte swizzle, as TMA leaves them: 1024 bytes from 8 rows to the next 8. `at` is
// a multiple of 1024, or of 32 more within the first row: the next k of one instruction. Bits 16 to 29, unused in this
// layout, are 1 as CUTLASS has them.
BS_DEVICE constexpr u64 swizzled_rows(u32 at) {
    return u64(SWIZZLE_128B | VERSION | units(1024)) << 32 | 1u << 16 | units(at);
}

// What 32 bytes further along k add to `swizzled_rows`, within the 128 bytes.
constexpr u32 NEXT_32_BYTES = units(32);

// 32 rows of 16 bytes for `cp_32x128b_warpx4`: 128 bytes from 8 rows to the next 8, without a swizzle.
BS_DEVICE constexpr u64 scale_rows(u32 at) { return u64(SWIZZLE_NONE | VERSION | units(128)) << 32 | units(at); }

// Element types in an instruction descriptor; the packed kinds have one type of their own.
enum class Type { E4M3 = 0, E5M2 = 1, E2M3 = 3, E3M2 = 4, E2M1 = 5, PACKED_E2M1 = 1 };

// D is M x N; with two CTAS, of the pair. Operands are K-major.
template <Kind KIND>
constexpr u32 instruction(Type a, Type b, int m, int n) {
    const u32 e8m0 = KIND != Kind::MXF4NVF4;
    return u32(a) << 7 | u32(b) << 10 | u32(n / 8) << 17 | e8m0 << 23 | u32(m / 16) << 24;
}

// Adds which of the four scale bytes in a TMEM column the instruction begins with, for both operands.
constexpr u32 scale_byte(int byte) { return u32(byte) << 4 | u32(byte) << 29; }

template <int CTAS, Kind KIND>
constexpr bool is_legal(int m, int n) {
    return m == 128 * CTAS && n % (8 * CTAS) == 0 && n >= 8 * CTAS && n <= 256;
}

static_assert(swizzled_rows(0x400) == 0x4000404000010040ull, "");
static_assert(scale_rows(0x8000) == 0x0000400800000800ull, "");
static_assert(instruction<Kind::MXF8F6F4>(Type::E4M3, Type::E4M3, 128, 128) == 0x08A00000u, "");
static_assert(instruction<Kind::MXF8F6F4>(Type::E4M3, Type::E4M3, 256, 256) + scale_byte(3) == 0x70C00030u, "");
static_assert(instruction<Kind::MXF8F6F4>(Type::E2M3, Type::E2M3, 256, 256) == 0x10C00D80u, "");
static_assert(instruction<Kind::MXF8F6F4>(Type::E3M2, Type::E3M2, 256, 256) == 0x10C01200u, "");
static_assert(instruction<Kind::MXF8F6F4>(Type::E4M3, Type::E2M1, 256, 256) == 0x10C01400u, "");
static_assert(instruction<Kind::MXF4>(Type::PACKED_E2M1, Type::PACKED_E2M1, 128, 128) == 0x08A00480u, "");
static_assert(instruction<Kind::MXF4>(Type::PACKED_E2M1, Type::PACKED_E2M1, 256, 256) + scale_byte(2) ==
                  0x10C00480u + 0x40000020u,
              "");
static_assert(instruction<Kind::MXF4NVF4>(Type::PACKED_E2M1, Type::PACKED_E2M1, 128, 256) == 0x08400480u, "");
static_assert(instruction<Kind::MXF4NVF4>(Type::PACKED_E2M1, Type::PACKED_E2M1, 256, 256) == 0x10400480u, "");

}  // namespace bs::ptx::tcgen05
