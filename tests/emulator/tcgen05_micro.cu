// A block-scaled product by tcgen05, in small: operands, scales and descriptors are the host's choice.
// `scaled_product` can be told to make a mistake.
#include "ptx/cluster.cuh"
#include "ptx/elect.cuh"
#include "ptx/tcgen05_descriptors.cuh"
#include "ptx/tma.cuh"

using namespace bs;
namespace tc = bs::ptx::tcgen05;

enum Mistake {
    NONE,
    NO_WAIT_FOR_COMMIT,      // TMEM is read before the products are done
    NO_FENCE_AFTER,          // the wait is not ordered before tcgen05.ld
    NO_WAIT_LD,              // registers are read before they are valid
    NO_DEALLOC,
    NO_PROXY_FENCE,          // operands that threads stored
    COPY_OVER_SCALES,        // that the product before still reads
    WRONG_LANES,             // of another warp
    UNALLOCATED,             // columns
    ODD_COLUMNS,             // no power of two
    SCALES_NOT_COPIED,
    NOT_KEPT,                // a matrix taken from the collector buffer, which nothing has filled
};

struct alignas(64) ScaledArguments {
    const u8 *a, *b;              // per CTA: rows of 128 bytes, swizzled by this kernel
    const u8 *a_scales, *b_scales;  // per CTA: tiles of 512 bytes; 4 k-blocks of 128 rows each
    float* out;                   // [CTA][128][n]
    u32 idesc, idesc_step;        // and what each of the products after the first adds
    int n, products;              // 32 bytes of k each, at most four
    int scale_step;               // TMEM columns from one product's scales to the next's
    int scale_tiles;              // of 128 rows of a: as many for each 128 of n
    int mistake;
};

constexpr int A_BYTES = 128 * 128, SCALE_TILE = 512, MOST_TILES = 4;

// Rows of 128 bytes with the 128-byte swizzle.
BS_DEVICE void store_swizzled(u8* to, const u8* from, int rows) {
    for (int i = threadIdx.x; i < rows * 8; i += blockDim.x)
        *reinterpret_cast<uint4*>(to + (i ^ (i / 8 & 7)) * 16) = *reinterpret_cast<const uint4*>(from + i * 16);
}

template <int CTAS, tc::Kind KIND>
struct Scaled {
    const ScaledArguments& a;
    u32 shared, tmem, barrier;
    int b_rows, n_tiles;

    BS_DEVICE bool errs(int mistake) const { return a.mistake == mistake; }
    BS_DEVICE u32 b_at() const { return shared + A_BYTES; }
    BS_DEVICE u32 scales_at() const { return b_at() + 256 * 128; }
    BS_DEVICE u32 a_column(int tile) const { return tmem + 256 + 4 * tile; }
    BS_DEVICE u32 b_column(int tile) const { return tmem + 256 + 16 + 8 * tile; }

    BS_DEVICE void copy_scales() const {
        for (int tile = 0; tile < a.scale_tiles; tile++) {
            tc::cp_32x128b_warpx4<CTAS>(a_column(tile), tc::scale_rows(scales_at() + tile * SCALE_TILE));
            for (int i = 0; i < n_tiles; i++)
                tc::cp_32x128b_warpx4<CTAS>(
                    b_column(tile) + 4 * i,
                    tc::scale_rows(scales_at() + (MOST_TILES + tile * n_tiles + i) * SCALE_TILE));
        }
    }

    BS_DEVICE void issue() const {
        if (!errs(SCALES_NOT_COPIED)) copy_scales();
        for (int i = 0; i < a.products; i++) {
            const int step = a.scale_step * i;  // scale groups
            const u64 rows = tc::swizzled_rows(shared) + i * tc::NEXT_32_BYTES;
            const u64 columns = tc::swizzled_rows(b_at()) + i * tc::NEXT_32_BYTES;
            const u32 idesc = a.idesc + i * a.idesc_step;
            if (errs(NOT_KEPT))
                tc::mma_block_scale<CTAS, KIND, tc::Keep::LAST_USE>(tmem, rows, columns, idesc, a_column(step),
                                                                    b_column(step), i > 0);
            else
                tc::mma_block_scale<CTAS, KIND>(tmem, rows, columns, idesc, a_column(step), b_column(step), i > 0);
        }
        if (errs(COPY_OVER_SCALES)) copy_scales();
        if constexpr (CTAS == 1)
            tc::commit<1>(barrier);
        else
            tc::commit_multicast<2>(barrier, 3);
    }

    BS_DEVICE void show(int rank) const {
        const int warp = threadIdx.x / 32;
        float* to = a.out + (rank * 128 + threadIdx.x) * a.n;
        for (int column = 0; column < a.n; column += 8) {
            u32 d[8];
            tc::ld_32x32b(d, tmem + tc::lane_bits(32 * (errs(WRONG_LANES) ? 3 - warp : warp)) + column);
            if (!errs(NO_WAIT_LD)) tc::wait_ld(d);
            for (int i = 0; i < 8; i++) to[column + i] = __uint_as_float(d[i]);
            if (errs(NO_WAIT_LD)) tc::wait_ld(d);
        }
        tc::fence_before_thread_sync();
    }
};

template <int CTAS, tc::Kind KIND>
BS_DEVICE void multiply_scaled(const ScaledArguments& a) {
    __shared__ u64 barrier;
    __shared__ u32 tmem;
    const int rank = blockIdx.y, columns = 512;
    u8* memory = ptx::dynamic_shared();
    memory += -ptx::shared_address(memory) & 1023;
    Scaled<CTAS, KIND> s{a, ptx::shared_address(memory), 0, ptx::shared_address(&barrier), a.n / CTAS, (a.n + 127) / 128};
    store_swizzled(memory, a.a + rank * A_BYTES, 128);
    store_swizzled(memory + A_BYTES, a.b + rank * s.b_rows * 128, s.b_rows);
    u8* scales = memory + A_BYTES + 256 * 128;
    for (int i = threadIdx.x; i < a.scale_tiles * SCALE_TILE; i += blockDim.x)
        scales[i] = a.a_scales[rank * a.scale_tiles * SCALE_TILE + i];
    for (int i = threadIdx.x; i < a.scale_tiles * s.n_tiles * SCALE_TILE; i += blockDim.x)
        scales[MOST_TILES * SCALE_TILE + i] = a.b_scales[i];
    if (!s.errs(NO_PROXY_FENCE)) ptx::tma::fence_after_stores();
    if (threadIdx.x == 0) ptx::mbarrier_init(s.barrier, 1), ptx::mbarrier_init_fence();
    if (CTAS == 2) ptx::cluster_sync();
    if (threadIdx.x < 32) tc::alloc<CTAS>(ptx::shared_address(&tmem), s.errs(ODD_COLUMNS) ? 48 : s.errs(UNALLOCATED) ? 32 : columns);
    tc::fence_before_thread_sync();
    if (CTAS == 2)
        ptx::cluster_sync();
    else
        __syncthreads();
    tc::fence_after_thread_sync();
    s.tmem = tmem;
    if (threadIdx.x < 32 && rank == 0)
        if (ptx::elect_one()) s.issue();
    __syncwarp();
    if (!s.errs(NO_WAIT_FOR_COMMIT)) ptx::mbarrier_wait(s.barrier, 0);
    if (!s.errs(NO_FENCE_AFTER)) tc::fence_after_thread_sync();
    s.show(rank);
    if (s.errs(NO_WAIT_FOR_COMMIT)) ptx::mbarrier_wait(s.barrier, 0);
    if (CTAS == 2)
        ptx::cluster_sync();
    else
        __syncthreads();
    tc::fence_after_thread_sync();
    if (threadIdx.x < 32) {
        tc::relinquish_alloc_permit<CTAS>();
        if (!s.errs(NO_DEALLOC)) tc::dealloc<CTAS>(s.tmem, s.errs(UNALLOCATED) ? 32 : columns);
    }
}

// KIND_OF_PRODUCT and CTAS_OF_PRODUCT come from the command line.
extern "C" __global__ void __launch_bounds__(128) scaled_product(const __grid_constant__ ScaledArguments a) {
    multiply_scaled<CTAS_OF_PRODUCT, tc::Kind::KIND_OF_PRODUCT>(a);
}
