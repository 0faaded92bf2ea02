// Host twins of PTX instructions: each does what the PTX manual says the instruction does, for the thread that calls it.
// tests/emulator defines them and runs kernels by them, CTAs and clusters at once; docs/design/0011-emulator.md.
#pragma once
#include <initializer_list>

namespace bs::host {

// Shared memory.
u32 shared_address(const void* pointer);
u8* dynamic_shared();
u32 mapa(u32 address, u32 rank);
void load_shared(void* to, u32 from, int size);
void store_shared(u32 to, const void* from, int size);
inline void store_shared(u32 to, uint4 words) { store_shared(to, &words, sizeof words); }
inline void store_shared(u32 to, uint2 words) { store_shared(to, &words, sizeof words); }
inline void store_dsmem(u32 address, int rank, float4 v) { store_shared(mapa(address, u32(rank)), &v, sizeof v); }
inline void load_dsmem(float4& to, u32 address, int rank) { load_shared(&to, mapa(address, u32(rank)), sizeof to); }

// Threads of a CTA or a cluster that wait for each other.
void bar_sync(int barrier, int threads);
void cluster_sync(bool orders);
void keep_registers(int count);
void take_registers(int count);

// mbarriers, and copies.
void mbarrier_init(u32 barrier, int arrivals);
void mbarrier_init_fence();
void mbarrier_arrive(u32 barrier);
void mbarrier_arrive_expect_tx(u32 barrier, int bytes);
void mbarrier_wait(u32 barrier, u32 parity);
void fence_proxy_async();
void cp_async(u32 to, const void* from, int size, int present);
void cp_async_commit();
void cp_async_wait(int pending);
void tma_load(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier);
void tma_load_multicast(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier, u32 ctas);
void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier);
void tma_load_pair(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier);
void tma_load_pair_multicast(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier, u32 ctas);

// Global memory.
void store_32_bytes(void* to, const u32* words);

// Flags in global memory.
void raise_flag(u32* flag);
void wait_for_flag(const u32* flag);
void lower_flag(u32* flag);

// One lane is chosen.
void elect_one(u32& elected);

// Conversions.
void e4m3x2_to_float16x2(u32& to, u32 pair);
void e8m0x2_to_bfloat16x2(u32& to, u32 pair);

// Matrices.
void movmatrix_transposed(u32& to, u32 matrix);
void ldmatrix_to_bytes(u32* words, int matrices, u32 address, int bits);
struct ScaleRegister {
    u32 word;
    int byte, thread;  // the first byte that is used, and which lanes of four give theirs
};
void mma_block_scale(int kind, int a_type, int b_type, float* c, const u32* a, const u32* b, ScaleRegister a_scale,
                     ScaleRegister b_scale);
void ldmatrix(u32* words, int matrices, u32 address);
void stmatrix_transposed(u32 address, const u32* words, int matrices);
void mma_m16n8k16(float* c, const u32* a, u32 b0, u32 b1, bool is_bfloat16);
inline void mma_m16n8k16_first(float* c, const u32* a, u32 b0, u32 b1, bool is_bfloat16) {
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    mma_m16n8k16(c, a, b0, b1, is_bfloat16);
}
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending);
void wgmma_m64k16(float* d, int n, const u32* a, u64 b, bool is_bfloat16);
void takes_branch(bool taken);  // by a warp; those that multiply by one wgmma must have taken the same

// tcgen05; `ctas` is the cta_group.
void tcgen05_alloc(int ctas, u32 to, int columns);
void tcgen05_dealloc(int ctas, u32 tmem, int columns);
void tcgen05_relinquish(int ctas);
void tcgen05_fence_before();
void tcgen05_fence_after();
void tcgen05_commit(int ctas, u32 barrier);
void tcgen05_commit_multicast(int ctas, u32 barrier, u32 mask);
void tcgen05_cp_32x128b_warpx4(int ctas, u32 tmem, u64 descriptor);
void tcgen05_mma_block_scale(int ctas, int kind, int keep, u32 d, u64 a, u64 b, u32 idesc, u32 a_scale, u32 b_scale,
                             bool accumulate);
void tcgen05_mma_f16(int ctas, u32 d, u32 a, u64 b, u32 idesc, bool accumulate);
void tcgen05_ld_32x32b(u32* to, int registers, u32 address);
void tcgen05_ld_16x256b(u32* to, int registers, u32 address);
void tcgen05_wait_ld();
void tcgen05_st_16x128b(u32 address, const u32* from, int registers);
void tcgen05_wait_st();

}  // namespace bs::host
