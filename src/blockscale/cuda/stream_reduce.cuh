// Sums of warps and of blocks come together, in a fixed order, and are stored.
#pragma once
#include "epilogue.cuh"
#include "stream_rows.cuh"

// One output from its sums, stored. `sum` is indexed by branch.
BS_DEVICE void finish(const Arguments& a, const float (&sum)[BRANCHES], int group, int row, int column) {
    float y[BRANCHES];
#pragma unroll
    for (int i = 0; i < BRANCHES; i++) {
        y[i] = sum[i];
        if (a.x_scale) y[i] *= a.x_scale[row];
        if (a.weight[i].tensor_scale) y[i] *= a.weight[i].tensor_scale[group];
        if (a.weight[i].bias)
            y[i] += load_number(a.weight[i].bias, static_cast<long long>(group) * a.n + column,
                                a.bias_dtype);
    }
    float value = GATED ? activate(a.activation, y[0], y[BRANCHES - 1], a.alpha, a.limit) : y[0];
    store_number(a.out, row * a.out_stride + column, value, a.out_dtype);
}

// Sums of all k warps in order; of all splits in order, by the block that arrives last.
BS_DEVICE void reduce_and_store(const Arguments& a, const float* left, const Rows& rows,
                                int first_column, int columns, u32 tile) {
    constexpr int SIZE = COLUMNS * ROWS;
    const int splits = gridDim.y, split = blockIdx.y;
    float* partial = a.partial + static_cast<long long>(tile) * splits * BRANCHES * SIZE;
    for (int i = threadIdx.x; i < columns * ROWS; i += THREADS) {
        float sum[BRANCHES];
#pragma unroll
        for (int branch = 0; branch < BRANCHES; branch++) {
            sum[branch] = left[branch * SIZE + i];
#pragma unroll
            for (int warp = 1; warp < K_WARPS; warp++)
                sum[branch] += left[(warp * BRANCHES + branch) * SIZE + i];
            if (splits > 1) partial[(split * BRANCHES + branch) * SIZE + i] = sum[branch];
        }
        int column = blockIdx.x * ROWS + i % ROWS;
        if (splits == 1 && column < a.n)
            finish(a, sum, rows.group, rows.begin + first_column + i / ROWS, column);
    }
    if (splits == 1) return;
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(a.arrivals + tile, 1u) == splits - 1;
        if (is_last) a.arrivals[tile] = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int i = threadIdx.x; i < columns * ROWS; i += THREADS) {
        int column = blockIdx.x * ROWS + i % ROWS;
        if (column >= a.n) continue;
        float sum[BRANCHES];
#pragma unroll
        for (int branch = 0; branch < BRANCHES; branch++) {
            sum[branch] = 0.0f;
            for (int s = 0; s < splits; s++)
                sum[branch] += __ldcg(partial + (s * BRANCHES + branch) * SIZE + i);
        }
        finish(a, sum, rows.group, rows.begin + first_column + i / ROWS, column);
    }
}
