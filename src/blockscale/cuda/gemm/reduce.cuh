// Sums of warps and of blocks come together, in a fixed order, and are stored: four rows of w at a time,
// and several such quads by a thread at once, so that it waits for memory once and not for each.
#pragma once
#include "ptx/cluster.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/groups.cuh"

constexpr int QUADS = ROWS / 4;     // of one row of x
constexpr int SUM_PITCH = ROWS + 4;  // floats; what is left in shared memory by four lanes spreads over banks

struct Quad {
    float of[BRANCHES][4];

    BS_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < 4 * BRANCHES; i++) of[i / 4][i % 4] = 0.0f;
    }

    BS_DEVICE void add(int branch, float4 v) {
        of[branch][0] += v.x, of[branch][1] += v.y, of[branch][2] += v.z, of[branch][3] += v.w;
    }
};

// What the warps of this block left: [k_warp][branch][column][row].
BS_DEVICE void add_warps(Quad& sum, const float* left, int quad) {
    const float* from = left + quad / QUADS * SUM_PITCH + quad % QUADS * 4;
#pragma unroll
    for (int warp = 0; warp < K_WARPS; warp++)
#pragma unroll
        for (int branch = 0; branch < BRANCHES; branch++)
            sum.add(branch, *reinterpret_cast<const float4*>(from + (warp * BRANCHES + branch) * COLUMNS * SUM_PITCH));
}

// Tensor scales are wanted last, when there is nothing left to do but wait: so they are fetched first. They have 16
// bytes for themselves: a load of their neighbours may be made as wide as that, and would meet the copy.
BS_DEVICE float* tensor_scales() {
    __shared__ __align__(16) float memory[4];
    return memory;
}

BS_DEVICE void fetch_tensor_scales(const Arguments& a, int group) {
    if (threadIdx.x == THREADS - 1)
#pragma unroll
        for (int i = 0; i < BRANCHES; i++)
            if (a.weight[i].tensor_scale)
                copy_float_async(shared_address(tensor_scales() + i), a.weight[i].tensor_scale + group);
    commit_copies();
}

struct Finish {
    const Arguments& a;
    int group, first_row;  // of x
    float tensor_scale[BRANCHES];
    bool whole;  // each quad can be stored at once
    bool plain;  // and nothing is done to it but what tensor scales do

    BS_DEVICE Finish(const Arguments& a, int group, int first_row)
        : a(a), group(group), first_row(first_row) {
#pragma unroll
        for (int i = 0; i < BRANCHES; i++) tensor_scale[i] = a.weight[i].tensor_scale ? tensor_scales()[i] : 1.0f;
        const u64 begin = reinterpret_cast<u64>(a.out);
        whole = a.n % 4 == 0 && a.out_stride % 4 == 0 && begin % (a.out_dtype == FLOAT32 ? 16 : 8) == 0;
        plain = whole && !GATED && !a.x_scale && !a.weight[0].bias;
    }

    BS_DEVICE int row_of(int quad) const { return first_row + quad / QUADS; }
    BS_DEVICE int column_of(int quad) const { return blockIdx.x * ROWS + quad % QUADS * 4; }
    BS_DEVICE bool is_stored(int quad) const { return column_of(quad) < a.n; }

    BS_DEVICE void store_plain(const Quad& sum, int quad) const {
        if (!is_stored(quad)) return;
        float value[4];
#pragma unroll
        for (int j = 0; j < 4; j++) value[j] = sum.of[0][j] * tensor_scale[0];
        store_four(a.out, row_of(quad) * a.out_stride + column_of(quad), value, a.out_dtype);
    }

    BS_DEVICE void store(const Quad& sum, int quad) const {
        if (!is_stored(quad)) return;
        const int row = row_of(quad), column = column_of(quad);
        float y[BRANCHES][4], value[4];
        const float x_scale = a.x_scale ? a.x_scale[row] : 1.0f;
#pragma unroll
        for (int i = 0; i < BRANCHES; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) y[i][j] = sum.of[i][j] * x_scale * tensor_scale[i];
            if (a.weight[i].bias) add_bias(y[i], i, column);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            value[j] = GATED ? activate(a.activation, y[0][j], y[BRANCHES - 1][j], a.alpha, a.limit) : y[0][j];
        const long long at = row * a.out_stride + column;
        if (whole) {
            store_four(a.out, at, value, a.out_dtype);
            return;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (column + j < a.n) store_number(a.out, at + j, value[j], a.out_dtype);
    }

    BS_DEVICE void add_bias(float (&y)[4], int branch, int column) const {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (column + j < a.n)
                y[j] += load_number(a.weight[branch].bias, static_cast<long long>(group) * a.n + column + j,
                                    a.bias_dtype);
    }
};

// Quad by quad of a SHARE of the block's: `add` sums one, and `store` takes it.
template <int SHARE, class Add, class Store>
BS_DEVICE void for_quads(int begin, int end, const Add& add, const Store& store) {
    constexpr int EACH = (COLUMNS * QUADS / SHARE + THREADS - 1) / THREADS;  // of a thread
    constexpr int AT_ONCE = EACH < 1 ? 1 : EACH > 4 ? 4 : EACH;
    for (int first = begin + threadIdx.x; first < end; first += AT_ONCE * THREADS) {
        Quad sums[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            sums[i].clear();
            if (first + i * THREADS < end) add(sums[i], first + i * THREADS);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * THREADS < end) store(sums[i], first + i * THREADS);
    }
}

// Without the questions that most products need not be asked, there are few instructions for each quad.
template <int SHARE, class Add>
BS_DEVICE void finish_quads(const Finish& finish, int begin, int end, const Add& add) {
    if (!GATED && finish.plain)
        for_quads<SHARE>(begin, end, add, [&](const Quad& sum, int quad) { finish.store_plain(sum, quad); });
    else
        for_quads<SHARE>(begin, end, add, [&](const Quad& sum, int quad) { finish.store(sum, quad); });
}

#if BS_CLUSTER
// Blocks that share the k of an output are one cluster, and read each other's shared memory: each sums and
// stores a part, once all have summed their warps in place.
BS_DEVICE void reduce_and_store(const Arguments& a, float* left, const Rows& rows, int first_column,
                                int columns) {
    const Finish finish(a, rows.group, rows.begin + first_column);
    const int split = blockIdx.y, quads = columns * QUADS;
    const auto place = [&](int branch, int quad) {
        return left + branch * COLUMNS * SUM_PITCH + quad / QUADS * SUM_PITCH + quad % QUADS * 4;
    };
    if (K_WARPS > 1)
        for_quads<1>(
            0, quads, [&](Quad& sum, int quad) { add_warps(sum, left, quad); },
            [&](const Quad& sum, int quad) {
#pragma unroll
                for (int i = 0; i < BRANCHES; i++)
                    *reinterpret_cast<float4*>(place(i, quad)) =
                        make_float4(sum.of[i][0], sum.of[i][1], sum.of[i][2], sum.of[i][3]);
            });
    meet_cluster();
    // A sum that is not stored is not loaded either: nothing would wait for the load before this block leaves the
    // cluster, and the block that it reads from may have ended by the time it is carried out.
    finish_quads<SPLITS>(
        finish, quads * split / SPLITS, quads * (split + 1) / SPLITS, [&](Quad& sum, int quad) {
            if (!finish.is_stored(quad)) return;
#pragma unroll
            for (int s = 0; s < SPLITS; s++)
#pragma unroll
                for (int i = 0; i < BRANCHES; i++)
                    sum.add(i, load_of_block(shared_address(place(i, quad)), s));
        });
    leave_cluster();
}
#else
// Sums of all k warps in order; of all splits in order, by the block that arrives last.
BS_DEVICE void reduce_and_store(const Arguments& a, float* left, const Rows& rows, int first_column,
                                int columns) {
    const Finish finish(a, rows.group, rows.begin + first_column);
    const auto from_warps = [&](Quad& sum, int quad) { add_warps(sum, left, quad); };
    const int quads = columns * QUADS;
    if (SPLITS == 1) {
        finish_quads<1>(finish, 0, quads, from_warps);
        return;
    }
    constexpr int SIZE = COLUMNS * QUADS;
    const int splits = gridDim.y;
    const u32 tile = blockIdx.z * gridDim.x + blockIdx.x;
    float4* partial = reinterpret_cast<float4*>(a.partial) +
                      static_cast<long long>(tile) * splits * BRANCHES * SIZE;
    for_quads<1>(0, quads, from_warps, [&](const Quad& sum, int quad) {
#pragma unroll
        for (int i = 0; i < BRANCHES; i++)
            partial[(blockIdx.y * BRANCHES + i) * SIZE + quad] =
                make_float4(sum.of[i][0], sum.of[i][1], sum.of[i][2], sum.of[i][3]);
    });
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
    finish_quads<1>(
        finish, 0, quads, [&](Quad& sum, int quad) {
#pragma unroll 4
            for (int s = 0; s < splits; s++)
#pragma unroll
                for (int i = 0; i < BRANCHES; i++)
                    sum.add(i, __ldcg(partial + (s * BRANCHES + i) * SIZE + quad));
        });
}
#endif
