// Split-K reduction and epilogue: sums of the k warps of a CTA, then of the CTAs that share an output, are added in a
// fixed order and stored.
//
// A quad is four neighbouring outputs of one row of x. A thread takes up to four quads at once, so that it waits for
// memory once and not for each.
#pragma once
#include "gemm/epilogue.cuh"
#include "gemm/groups.cuh"
#include "gemm/tensor_scales.cuh"
#include "ptx/cluster.cuh"

namespace bs::gemm {

template <class Shape>
struct Quad {
    static constexpr int PER_ROW = Shape::TILE_N / 4;  // of one row of x

    float of[Shape::BRANCHES][4];

    BS_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < 4 * Shape::BRANCHES; i++) of[i / 4][i % 4] = 0.0f;
    }

    BS_DEVICE void add(int branch, float4 v) {
        of[branch][0] += v.x, of[branch][1] += v.y, of[branch][2] += v.z, of[branch][3] += v.w;
    }

    BS_DEVICE float4 get(int branch) const {
        return make_float4(of[branch][0], of[branch][1], of[branch][2], of[branch][3]);
    }
};

// What the warps of this CTA left: [k_warp][branch][row of x][row of w].
template <class Shape>
BS_DEVICE void add_warps(Quad<Shape>& sum, const float* left, int quad) {
    constexpr int PER_ROW = Quad<Shape>::PER_ROW;
    const float* from = left + quad / PER_ROW * Shape::SUM_PITCH + quad % PER_ROW * 4;
#pragma unroll
    for (int warp = 0; warp < Shape::K_WARPS; warp++)
#pragma unroll
        for (int branch = 0; branch < Shape::BRANCHES; branch++)
            sum.add(branch, *reinterpret_cast<const float4*>(
                                from + (warp * Shape::BRANCHES + branch) * Shape::TILE_M * Shape::SUM_PITCH));
}

template <class Shape>
struct Finish {
    using Arguments = typename Shape::Arguments;
    static constexpr int BRANCHES = Shape::BRANCHES, PER_ROW = Quad<Shape>::PER_ROW;

    const Arguments& a;
    int group, first_row;  // of x
    float tensor_scale[BRANCHES];
    bool whole;  // each quad can be stored at once
    bool plain;  // and nothing is done to it but multiplying by tensor scales

    BS_DEVICE Finish(const Arguments& a, int group, int first_row) : a(a), group(group), first_row(first_row) {
#pragma unroll
        for (int i = 0; i < BRANCHES; i++) tensor_scale[i] = a.weight[i].tensor_scale ? tensor_scales<Shape>()[i] : 1.0f;
        const u64 begin = reinterpret_cast<u64>(a.out);
        whole = a.n % 4 == 0 && a.out_stride % 4 == 0 && begin % (a.out_dtype == FLOAT32 ? 16 : 8) == 0;
        plain = whole && !Shape::GATED && !a.x_scale && !a.weight[0].bias;
    }

    BS_DEVICE int row_of(int quad) const { return first_row + quad / PER_ROW; }
    BS_DEVICE int column_of(int quad) const { return blockIdx.x * Shape::TILE_N + quad % PER_ROW * 4; }
    BS_DEVICE bool is_stored(int quad) const { return column_of(quad) < a.n; }

    BS_DEVICE void store_plain(const Quad<Shape>& sum, int quad) const {
        if (!is_stored(quad)) return;
        float value[4];
#pragma unroll
        for (int j = 0; j < 4; j++) value[j] = sum.of[0][j] * tensor_scale[0];
        store_four(a.out, row_of(quad) * a.out_stride + column_of(quad), value, a.out_dtype);
    }

    BS_DEVICE void store(const Quad<Shape>& sum, int quad) const {
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
            value[j] = Shape::GATED ? activate(a.activation, y[0][j], y[BRANCHES - 1][j], a.alpha, a.limit) : y[0][j];
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

// Quads `begin` to `end`, of which each of PARTS CTAs has its part: `add` sums one, and `store` takes it.
template <class Shape, int PARTS, class Add, class Store>
BS_DEVICE void for_quads(int begin, int end, const Add& add, const Store& store) {
    constexpr int THREADS = Shape::THREADS;
    constexpr int EACH = (Shape::TILE_M * Quad<Shape>::PER_ROW / PARTS + THREADS - 1) / THREADS;  // of a thread
    constexpr int AT_ONCE = EACH < 1 ? 1 : EACH > 4 ? 4 : EACH;
    for (int first = begin + threadIdx.x; first < end; first += AT_ONCE * THREADS) {
        Quad<Shape> sums[AT_ONCE];
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

// Most products need no scale of x, no bias and no activation: without the branches for these a quad takes few
// instructions.
template <class Shape, int PARTS, class Add>
BS_DEVICE void finish_quads(const Finish<Shape>& finish, int begin, int end, const Add& add) {
    if (!Shape::GATED && finish.plain)
        for_quads<Shape, PARTS>(begin, end, add,
                                [&](const Quad<Shape>& sum, int quad) { finish.store_plain(sum, quad); });
    else
        for_quads<Shape, PARTS>(begin, end, add, [&](const Quad<Shape>& sum, int quad) { finish.store(sum, quad); });
}

// The CTAs that share an output form a cluster. Each adds the sums of its k warps in place; then each loads its part of
// the quads from all of them over DSMEM, adds and stores it.
template <class Shape>
BS_DEVICE void reduce_in_cluster(const typename Shape::Arguments& a, float* left, const RowRange& rows, int first_m,
                                 int m) {
    constexpr int PER_ROW = Quad<Shape>::PER_ROW, SPLITS = Shape::SPLITS;
    const Finish<Shape> finish(a, rows.group, rows.begin + first_m);
    const int split = blockIdx.y, quads = m * PER_ROW;
    const auto place = [&](int branch, int quad) {
        return left + branch * Shape::TILE_M * Shape::SUM_PITCH + quad / PER_ROW * Shape::SUM_PITCH +
               quad % PER_ROW * 4;
    };
    if (Shape::K_WARPS > 1)
        for_quads<Shape, 1>(
            0, quads, [&](Quad<Shape>& sum, int quad) { add_warps(sum, left, quad); },
            [&](const Quad<Shape>& sum, int quad) {
#pragma unroll
                for (int i = 0; i < Shape::BRANCHES; i++) *reinterpret_cast<float4*>(place(i, quad)) = sum.get(i);
            });
    ptx::cluster_sync();
    // A quad that is not stored is not loaded either: nothing would wait for its load before this CTA leaves the
    // cluster, and the CTA that owns the memory may have ended by the time the load is carried out.
    finish_quads<Shape, SPLITS>(
        finish, quads * split / SPLITS, quads * (split + 1) / SPLITS, [&](Quad<Shape>& sum, int quad) {
            if (!finish.is_stored(quad)) return;
#pragma unroll
            for (int s = 0; s < SPLITS; s++)
#pragma unroll
                for (int i = 0; i < Shape::BRANCHES; i++)
                    sum.add(i, ptx::load_dsmem(ptx::shared_address(place(i, quad)), s));
        });
    ptx::cluster_sync_relaxed();
}

// Without split-K the CTA stores the sums of its k warps.
template <class Shape>
BS_DEVICE void reduce_in_cta(const typename Shape::Arguments& a, float* left, const RowRange& rows, int first_m, int m) {
    const Finish<Shape> finish(a, rows.group, rows.begin + first_m);
    finish_quads<Shape, 1>(finish, 0, m * Quad<Shape>::PER_ROW,
                           [&](Quad<Shape>& sum, int quad) { add_warps(sum, left, quad); });
}

template <class Shape>
BS_DEVICE void reduce_and_store(const typename Shape::Arguments& a, float* left, const RowRange& rows, int first_m,
                                int m) {
    if constexpr (Shape::SPLITS > 1)
        reduce_in_cluster<Shape>(a, left, rows, first_m, m);
    else
        reduce_in_cta<Shape>(a, left, rows, first_m, m);
}

}  // namespace bs::gemm
