// mma.sync: products of a warp. Pair is BFloat16x2 or Float16x2, sums are float32.
#pragma once
#include "ptx/half_pair.cuh"

namespace bs::ptx {

// c += a b, a 16 x 16 (rows of weights), b 16 x 8 (columns are rows of x).
template <class Pair>
BS_DEVICE void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (Pair::is_bfloat16)
        BS_PTX_PURE(mma_m16n8k16(c, a, b0, b1, Pair::is_bfloat16),
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                    "{%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        BS_PTX_PURE(mma_m16n8k16(c, a, b0, b1, Pair::is_bfloat16),
                    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                    "{%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c = a b: the first step of a sum, which spares clearing c.
template <class Pair>
BS_DEVICE void mma_m16n8k16_first(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (Pair::is_bfloat16)
        BS_PTX_PURE(mma_m16n8k16_first(c, a, b0, b1, Pair::is_bfloat16),
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                    "{%8,%9}, {%10,%10,%10,%10};"
                    : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
    else
        BS_PTX_PURE(mma_m16n8k16_first(c, a, b0, b1, Pair::is_bfloat16),
                    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                    "{%8,%9}, {%10,%10,%10,%10};"
                    : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

}  // namespace bs::ptx
