// mma.sync with block scales (sm_120, sm_121): products of a warp, sums are float32.
//
// A fragment's registers hold values as mma of 8-bit (k = 32) or 4-bit (k = 64) values do. A scale register of a lane has
// four bytes. Row m of A takes its scale from lane 4 (m % 8) + 2 A_THREAD + m / 8, column n of B from lane 4 n + B_THREAD;
// A_BYTE and B_BYTE are the first byte that is used.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// Elements in a byte each: e2m1 in bits 2 to 5, e2m3 and e3m2 in bits 0 to 5.
enum class ByteFloat { E4M3, E5M2, E2M3, E3M2, E2M1 };

// The host's twin takes the kind and the types of elements as numbers: those of tcgen05::Kind and ByteFloat.
#define BS_MMA_BLOCK_SCALE(KIND, A_TYPE, B_TYPE, TEXT)                                                                \
    BS_PTX_PURE(mma_block_scale(KIND, int(A_TYPE), int(B_TYPE), c, a, b, {a_scale, A_BYTE, A_THREAD},                 \
                                {b_scale, B_BYTE, B_THREAD}),                                                         \
                "mma.sync.aligned." TEXT " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%11,%12}, "   \
                "{%13}, {%14,%15};"                                                                                   \
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                      \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scale), "n"(A_BYTE),        \
                  "n"(A_THREAD), "r"(b_scale), "n"(B_BYTE), "n"(B_THREAD))

// c += a b, a 16 x 64 and b 64 x 8 packed e2m1, with a ue4m3 scale per 16: all four bytes of a scale register.
template <int A_BYTE, int A_THREAD, int B_BYTE, int B_THREAD>
BS_DEVICE void mma_mxf4nvf4(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], u32 a_scale, u32 b_scale) {
    static_assert(A_BYTE == 0 && B_BYTE == 0, "four scales begin at byte 0");
    BS_MMA_BLOCK_SCALE(2, ByteFloat::E2M1, ByteFloat::E2M1,
                       "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3");
}

// The same with a ue8m0 scale per 32: bytes 0 and 1, or 2 and 3.
template <int A_BYTE, int A_THREAD, int B_BYTE, int B_THREAD>
BS_DEVICE void mma_mxf4(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], u32 a_scale, u32 b_scale) {
    static_assert(A_BYTE % 2 == 0 && B_BYTE % 2 == 0, "two scales begin at byte 0 or 2");
    BS_MMA_BLOCK_SCALE(1, ByteFloat::E2M1, ByteFloat::E2M1,
                       "m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0");
}

#define BS_MMA_MXF8F6F4(A_NAME, B_NAME) \
    BS_MMA_BLOCK_SCALE(0, A, B,         \
                       "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32." A_NAME "." B_NAME ".f32.ue8m0")

#define BS_MMA_MXF8F6F4_OF(A_NAME)                   \
    if constexpr (B == ByteFloat::E4M3)              \
        BS_MMA_MXF8F6F4(A_NAME, "e4m3");             \
    else if constexpr (B == ByteFloat::E5M2)         \
        BS_MMA_MXF8F6F4(A_NAME, "e5m2");             \
    else if constexpr (B == ByteFloat::E2M3)         \
        BS_MMA_MXF8F6F4(A_NAME, "e2m3");             \
    else if constexpr (B == ByteFloat::E3M2)         \
        BS_MMA_MXF8F6F4(A_NAME, "e3m2");             \
    else                                             \
        BS_MMA_MXF8F6F4(A_NAME, "e2m1")

// c += a b, a 16 x 32 and b 32 x 8, with one ue8m0 scale of each row and column.
template <ByteFloat A, ByteFloat B, int A_BYTE, int A_THREAD, int B_BYTE, int B_THREAD>
BS_DEVICE void mma_mxf8f6f4(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], u32 a_scale, u32 b_scale) {
    if constexpr (A == ByteFloat::E4M3) {
        BS_MMA_MXF8F6F4_OF("e4m3");
    } else if constexpr (A == ByteFloat::E5M2) {
        BS_MMA_MXF8F6F4_OF("e5m2");
    } else if constexpr (A == ByteFloat::E2M3) {
        BS_MMA_MXF8F6F4_OF("e2m3");
    } else if constexpr (A == ByteFloat::E3M2) {
        BS_MMA_MXF8F6F4_OF("e3m2");
    } else {
        BS_MMA_MXF8F6F4_OF("e2m1");
    }
}

#undef BS_MMA_MXF8F6F4_OF
#undef BS_MMA_MXF8F6F4
#undef BS_MMA_BLOCK_SCALE

}  // namespace bs::ptx
