// Products with few rows of x: every weight is read once, decoded and multiplied on the way.
//
//     out[m, n] = x[m, k] * (w[n, k] * scale)
//
// Weights are the A operand of the tensor cores, rows of x the columns of B, so a tile is 16 rows of
// w by 8 rows of x. Sums of one block of k are scaled in float32 after they were summed; where the
// product of weight and scale is exact in 16 bits, and rows are many, weights are scaled instead. With fewer
// than 8 rows of x most columns would be idle: they hold other blocks instead. Of one row, the part of x
// in block j stands in column j and nowhere else, so that eight blocks stay apart in one accumulator
// and every lane applies only the scales of the columns it owns.
//
// A block of threads has ROW_WARPS x K_WARPS warps. The warps of a row take the same 16 * TILES rows of w
// and every K_WARPS-th chunk of k; their sums are added in a fixed order. Several blocks may
// share the k of one output: a cluster, whose blocks read each other's sums, or others, of which the last to arrive
// adds what the rest left; again in a fixed order. Chunks arrive by asynchronous copies, STAGES deep.
//
// What it is specialised by is defined when it is compiled, with the prefix BS_.
#if BS_WGMMA
#include "gemm/wgmma.cuh"
#elif BS_TILE_M >= 8
#include "gemm/mma.cuh"
#else
#include "gemm/mma_few.cuh"
#endif

BS_DEVICE void work(const Arguments& a, u8* memory, const Rows& rows) {
    Decode decoders[BRANCHES];
    const u32 table = shared_address(memory) - BEFORE_BYTES;
    const u32 stages = (shared_address(memory) + ZERO_BYTES + ALIGNED - 1) / ALIGNED * ALIGNED;
    Warp warp(a, stages, decoders);
    const long long chunks = (a.k + CHUNK - 1) / CHUNK;
    const long long splits = SPLITS ? SPLITS : gridDim.y;
    const int first = static_cast<int>(chunks * blockIdx.y / splits);
    const int end = static_cast<int>(chunks * (blockIdx.y + 1) / splits);
    const auto load_tables = [&] {
#pragma unroll
        for (int i = 0; i < BRANCHES; i++) load(decoders[i], a.weight[i].table, table, i);
        if (SHARED_TABLE || WIDE) __syncthreads();  // the ring's barriers are made then, too
    };
    if (!a.settled) wait_for_previous();
    let_next_start();
    fetch_tensor_scales(a, rows.group);
    for (int column = 0; column < rows.end - rows.begin; column += COLUMNS) {
        warp.run(rows, column, first, end, [&] {
            if (column == 0) load_tables();
        });
        wait_for_copies<0>();  // tensor scales have come
        __syncthreads();       // the stages are read no more: sums take their place
        float* left = reinterpret_cast<float*>(memory + ZERO_BYTES);
        warp.leave(left);
        __syncthreads();
        reduce_and_store(a, left, rows, column, min(rows.end - rows.begin - column, COLUMNS));
        warp.end_turn();
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BS_CTAS_PER_SM)
    stream(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) u8 shared_memory[];
    u8* memory = shared_memory + BEFORE_BYTES;
    for (int i = threadIdx.x; i < ZERO_BYTES / 4; i += THREADS) reinterpret_cast<u32*>(memory)[i] = 0;
#if BS_RAGGED
    wait_for_previous();  // it may have written the group sizes
    int total;
    const Rows rows = find_rows(a, total);
    if (blockIdx.y == 0)  // rows of nobody
        for (int row = total + blockIdx.z; row < a.m; row += gridDim.z)
            for (int i = threadIdx.x; i < ROWS; i += THREADS)
                if (blockIdx.x * ROWS + i < a.n)
                    store_number(a.out, row * a.out_stride + blockIdx.x * ROWS + i, 0.0f, a.out_dtype);
    if (rows.group < 0) return;
#else
    const Rows rows{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.z) * a.m,
                    static_cast<int>(blockIdx.z + 1) * a.m};
    if (ZERO_BYTES) __syncthreads();
#endif
    work(a, memory, rows);
}
