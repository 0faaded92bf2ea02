// Block-scaled products of a warp, by kind, and fragments of their operands out of swizzled panels.
//
// A step takes 32 bytes of k of a panel. Where elements of 4 or 6 bits are multiplied as bytes, TMA has left 16 of them in
// each slot of 16 bytes, and ldmatrix spreads them.
#pragma once
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_block_scale.cuh"

namespace bs::gemm {

enum class ScaledKind { MXF8F6F4, MXF4, MXF4NVF4 };

template <ScaledKind KIND, ptx::ByteFloat X, ptx::ByteFloat W>
struct ScaledMma {
    using Kind = ScaledKind;
    using Type = ptx::ByteFloat;
    static constexpr int K = KIND == Kind::MXF8F6F4 ? 32 : 64;
    static constexpr int SCALES = KIND == Kind::MXF8F6F4 ? 1 : KIND == Kind::MXF4 ? 2 : 4;  // of a row, of one product

    // BYTE: the first of the scales in their words; threads of a quad that have the words of this tile.
    template <int BYTE, int X_THREAD, int W_THREAD>
    static BS_DEVICE void add(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], u32 x_scale, u32 w_scale) {
        if constexpr (KIND == Kind::MXF8F6F4)
            ptx::mma_mxf8f6f4<X, W, BYTE, X_THREAD, BYTE, W_THREAD>(c, a, b, x_scale, w_scale);
        else if constexpr (KIND == Kind::MXF4)
            ptx::mma_mxf4<BYTE, X_THREAD, BYTE, W_THREAD>(c, a, b, x_scale, w_scale);
        else
            ptx::mma_mxf4nvf4<BYTE, X_THREAD, BYTE, W_THREAD>(c, a, b, x_scale, w_scale);
    }

    // Four matrices of 8 rows by 16 bytes; lane i gives the address of row i % 8 of matrix i / 8.
    template <Type TYPE>
    static BS_DEVICE void load(u32 (&d)[4], u32 address) {
        if constexpr (KIND != Kind::MXF8F6F4 || TYPE == Type::E4M3 || TYPE == Type::E5M2) {
            ptx::ldmatrix_x4(d, address);
        } else if constexpr (TYPE == Type::E2M1) {
            ptx::ldmatrix_x4_from_4_bits(d, address);
#pragma unroll
            for (int i = 0; i < 4; i++) d[i] <<= 2;  // from the low bits of each byte to where the product takes them
        } else {
            ptx::ldmatrix_x4_from_6_bits(d, address);
        }
    }
};

// Where 16 bytes of a row are in a panel with TMA's 128-byte swizzle.
BS_DEVICE u32 swizzled(u32 panel, int row, int part) { return panel + row * 128 + ((part ^ row % 8) << 4); }

}  // namespace bs::gemm
