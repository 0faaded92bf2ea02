// Four warps multiply together (Hopper): each has 16 rows of weights in its registers, and the tensor
// cores read rows of x from shared memory by themselves.
#pragma once
#include "ptx/ptx.cuh"

// Rows of x lie in panels of 64 k, 128 bytes to a row, of which 16 bytes each are moved about by the
// row's number, so that 8 rows spread over all banks: as copies by a CUtensorMap leave them.

// What the instruction wants to know of a panel: where it is, by its lower word; 1024 bytes from 8 rows
// to the next 8, moved about as above.
BS_DEVICE u32 panel_word(u32 address) { return (1u << 16) | ((address & 0x3FFFF) >> 4); }
BS_DEVICE u64 panel_descriptor(u32 word) { return (u64((1u << 30) | (1024 >> 4)) << 32) | word; }

constexpr u32 NEXT_STEP = 32 >> 4;  // what a step of 16 k adds to the lower word

// Registers written before are ready for the products that follow.
BS_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
BS_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until then, neither the registers nor the shared memory of a product may change.
template <int PENDING>
BS_DEVICE void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// d += a b, d and a as in `multiply_add`, with one d for every 8 of N columns. The asynchronous product
// has all its sums as operands, so their number is part of the text.
template <class T, int N>
struct Products;

#define BS_EIGHTS_2 "%0,%1,%2,%3,%4,%5,%6,%7"
#define BS_EIGHTS_3 BS_EIGHTS_2 ",%8,%9,%10,%11"
#define BS_EIGHTS_4 BS_EIGHTS_3 ",%12,%13,%14,%15"
#define BS_EIGHTS_6 BS_EIGHTS_4 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define BS_EIGHTS_8 BS_EIGHTS_6 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define BS_EIGHTS_12 BS_EIGHTS_8 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define BS_EIGHTS_16 BS_EIGHTS_12 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

#define BS_D(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define BS_D_2 BS_D(0), BS_D(1)
#define BS_D_3 BS_D_2, BS_D(2)
#define BS_D_4 BS_D_3, BS_D(3)
#define BS_D_6 BS_D_4, BS_D(4), BS_D(5)
#define BS_D_8 BS_D_6, BS_D(6), BS_D(7)
#define BS_D_12 BS_D_8, BS_D(8), BS_D(9), BS_D(10), BS_D(11)
#define BS_D_16 BS_D_12, BS_D(12), BS_D(13), BS_D(14), BS_D(15)

#define BS_MULTIPLY(TYPE, N, EIGHTS, A, B)                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" BS_EIGHTS_##EIGHTS \
                 "}, {" A "}, " B ", 1, 1, 1, 0;"                                                         \
                 : BS_D_##EIGHTS                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define BS_PRODUCTS(N, EIGHTS, A, B)                                                  \
    template <class T>                                                                \
    struct Products<T, N> {                                                           \
        static BS_DEVICE void add(float (&d)[EIGHTS][4], const u32 (&a)[4], u64 b) { \
            if (T::is_bfloat16)                                                       \
                BS_MULTIPLY("bf16", N, EIGHTS, A, B);                                 \
            else                                                                      \
                BS_MULTIPLY("f16", N, EIGHTS, A, B);                                  \
        }                                                                             \
    }

BS_PRODUCTS(16, 2, "%8,%9,%10,%11", "%12");
BS_PRODUCTS(24, 3, "%12,%13,%14,%15", "%16");
BS_PRODUCTS(32, 4, "%16,%17,%18,%19", "%20");
BS_PRODUCTS(48, 6, "%24,%25,%26,%27", "%28");
BS_PRODUCTS(64, 8, "%32,%33,%34,%35", "%36");
BS_PRODUCTS(96, 12, "%48,%49,%50,%51", "%52");
BS_PRODUCTS(128, 16, "%64,%65,%66,%67", "%68");
