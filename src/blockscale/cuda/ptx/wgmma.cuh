// wgmma (Hopper): asynchronous products of a warpgroup. Each of its four warps holds 16 rows of A, the weights, in
// registers; the tensor cores read B, rows of x, from shared memory.
#pragma once
#include "ptx/half_pair.cuh"

namespace bs::ptx {

// B lies in panels of 64 k with the 128-byte swizzle: a row has 128 bytes, and 8 rows (1024 bytes) spread their
// 16-byte parts over all banks, as TMA leaves them. The lower word of the matrix descriptor has the address, the
// upper word the swizzle and the distance of 1024 bytes from 8 rows to the next 8.
BS_DEVICE u32 panel_word(u32 address) { return (1u << 16) | ((address & 0x3FFFF) >> 4); }
BS_DEVICE u64 panel_descriptor(u32 word) { return (u64((1u << 30) | (1024 >> 4)) << 32) | word; }

constexpr u32 NEXT_K16 = 32 >> 4;  // what a step of 16 k adds to the lower word

// Registers written before this may be operands of the products after it.
BS_DEVICE void wgmma_fence() { BS_PTX(wgmma_fence(), "wgmma.fence.sync.aligned;" ::: "memory"); }
BS_DEVICE void wgmma_commit() { BS_PTX(wgmma_commit(), "wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most PENDING groups are under way. Before that, neither registers nor shared memory of a product may change.
template <int PENDING>
BS_DEVICE void wgmma_wait() {
    BS_PTX(wgmma_wait(PENDING), "wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// d += a b, d and a as in `mma_m16n8k16`, with four sums of d for every 8 of N columns. The instruction has all its
// sums as operands, so its text depends on their number.
template <class Pair, int N>
struct Wgmma;

#define BS_WGMMA_SUMS_2 "%0,%1,%2,%3,%4,%5,%6,%7"
#define BS_WGMMA_SUMS_3 BS_WGMMA_SUMS_2 ",%8,%9,%10,%11"
#define BS_WGMMA_SUMS_4 BS_WGMMA_SUMS_3 ",%12,%13,%14,%15"
#define BS_WGMMA_SUMS_6 BS_WGMMA_SUMS_4 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define BS_WGMMA_SUMS_8 BS_WGMMA_SUMS_6 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define BS_WGMMA_SUMS_12 BS_WGMMA_SUMS_8 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define BS_WGMMA_SUMS_16 BS_WGMMA_SUMS_12 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define BS_WGMMA_SUMS_20 BS_WGMMA_SUMS_16 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define BS_WGMMA_SUMS_24 BS_WGMMA_SUMS_20 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define BS_WGMMA_SUMS_28 BS_WGMMA_SUMS_24 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define BS_WGMMA_SUMS_32 BS_WGMMA_SUMS_28 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define BS_WGMMA_D(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define BS_WGMMA_D_2 BS_WGMMA_D(0), BS_WGMMA_D(1)
#define BS_WGMMA_D_3 BS_WGMMA_D_2, BS_WGMMA_D(2)
#define BS_WGMMA_D_4 BS_WGMMA_D_3, BS_WGMMA_D(3)
#define BS_WGMMA_D_6 BS_WGMMA_D_4, BS_WGMMA_D(4), BS_WGMMA_D(5)
#define BS_WGMMA_D_8 BS_WGMMA_D_6, BS_WGMMA_D(6), BS_WGMMA_D(7)
#define BS_WGMMA_D_12 BS_WGMMA_D_8, BS_WGMMA_D(8), BS_WGMMA_D(9), BS_WGMMA_D(10), BS_WGMMA_D(11)
#define BS_WGMMA_D_16 BS_WGMMA_D_12, BS_WGMMA_D(12), BS_WGMMA_D(13), BS_WGMMA_D(14), BS_WGMMA_D(15)
#define BS_WGMMA_D_20 BS_WGMMA_D_16, BS_WGMMA_D(16), BS_WGMMA_D(17), BS_WGMMA_D(18), BS_WGMMA_D(19)
#define BS_WGMMA_D_24 BS_WGMMA_D_20, BS_WGMMA_D(20), BS_WGMMA_D(21), BS_WGMMA_D(22), BS_WGMMA_D(23)
#define BS_WGMMA_D_28 BS_WGMMA_D_24, BS_WGMMA_D(24), BS_WGMMA_D(25), BS_WGMMA_D(26), BS_WGMMA_D(27)
#define BS_WGMMA_D_32 BS_WGMMA_D_28, BS_WGMMA_D(28), BS_WGMMA_D(29), BS_WGMMA_D(30), BS_WGMMA_D(31)

#define BS_WGMMA_ADD(TYPE, N, TILES, A, B)                                                                    \
    BS_PTX(wgmma_m64k16(&d[0][0], N, a, b, Pair::is_bfloat16),                                                \
           "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" BS_WGMMA_SUMS_##TILES         \
           "}, {" A "}, " B ", 1, 1, 1, 0;"                                                                   \
           : BS_WGMMA_D_##TILES                                                                               \
           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define BS_WGMMA_OF(N, TILES, A, B)                                                                           \
    template <class Pair>                                                                                     \
    struct Wgmma<Pair, N> {                                                                                   \
        static BS_DEVICE void add(float (&d)[TILES][4], const u32 (&a)[4], u64 b) {                           \
            if (Pair::is_bfloat16)                                                                            \
                BS_WGMMA_ADD("bf16", N, TILES, A, B);                                                         \
            else                                                                                              \
                BS_WGMMA_ADD("f16", N, TILES, A, B);                                                          \
        }                                                                                                     \
    }

BS_WGMMA_OF(16, 2, "%8,%9,%10,%11", "%12");
BS_WGMMA_OF(24, 3, "%12,%13,%14,%15", "%16");
BS_WGMMA_OF(32, 4, "%16,%17,%18,%19", "%20");
BS_WGMMA_OF(48, 6, "%24,%25,%26,%27", "%28");
BS_WGMMA_OF(64, 8, "%32,%33,%34,%35", "%36");
BS_WGMMA_OF(96, 12, "%48,%49,%50,%51", "%52");
BS_WGMMA_OF(128, 16, "%64,%65,%66,%67", "%68");
BS_WGMMA_OF(160, 20, "%80,%81,%82,%83", "%84");
BS_WGMMA_OF(192, 24, "%96,%97,%98,%99", "%100");
BS_WGMMA_OF(224, 28, "%112,%113,%114,%115", "%116");
BS_WGMMA_OF(256, 32, "%128,%129,%130,%131", "%132");

#undef BS_WGMMA_OF
#undef BS_WGMMA_ADD

}  // namespace bs::ptx
