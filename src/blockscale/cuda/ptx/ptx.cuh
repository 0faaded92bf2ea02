// The instructions that C++ has no name for, one function each. No header of the toolkit is needed.
#pragma once
#include "ptx/pdl.cuh"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define BS_DEVICE __device__ __forceinline__

// Bytes of (b, a) by the nibbles of `selector`; a nibble's top bit asks for the byte's sign instead.
BS_DEVICE u32 pick_bytes(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

// (a & mask) | (b & ~mask)
BS_DEVICE u32 merge_bits(u32 a, u32 b, u32 mask) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xB8;" : "=r"(d) : "r"(b), "r"(mask), "r"(a));
    return d;
}

BS_DEVICE u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of 16-bit values; lane i names row i % 8 of matrix i / 8.
BS_DEVICE void load_matrices(u32 (&d)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address));
}

// 16 bytes from global to shared memory without passing a register.
BS_DEVICE void copy_async(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same, or zeros if `present` is false; then nothing is read.
BS_DEVICE void copy_async(u32 to, const void* from, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(present ? 16 : 0)
                 : "memory");
}

BS_DEVICE void copy_float_async(u32 to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

BS_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
BS_DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Some warps of a block meet.
BS_DEVICE void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// 16-bit floats: bfloat16 or float16, two to a register.
struct BFloat16 {
    static const bool is_bfloat16 = true;

    static BS_DEVICE u32 from_floats(float low, float high) {
        u32 d;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
        return d;
    }
    static BS_DEVICE u32 times(u32 a, u32 b) {  // -0 as the addend keeps every product's sign
        u32 d;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
        return d;
    }
    static BS_DEVICE u32 power_of_two(int exponent) { return 0x00010001u * ((exponent + 127) << 7); }
};

struct Float16 {
    static const bool is_bfloat16 = false;

    static BS_DEVICE u32 from_floats(float low, float high) {
        u32 d;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
        return d;
    }
    static BS_DEVICE u32 times(u32 a, u32 b) {
        u32 d;
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
        return d;
    }
    static BS_DEVICE u32 power_of_two(int exponent) { return 0x00010001u * ((exponent + 15) << 10); }
};

BS_DEVICE float float16_low(u32 pair) {
    float d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(d) : "r"(pair));
    return d;
}

BS_DEVICE float float16_high(u32 pair) {
    float d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(d) : "r"(pair));
    return d;
}

// c += a b, a 16 x 16 (rows of weights), b 16 x 8 (columns are rows of x), sums in float32.
template <class T>
BS_DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (T::is_bfloat16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c = a b: the first step of a sum, which spares clearing c.
template <class T>
BS_DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (T::is_bfloat16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%10,%10,%10,%10};"
            : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%10,%10,%10,%10};"
            : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
