// Which rows of x a CTA takes, and with which weights: found on the device where groups are ragged.
#pragma once
#include "gemm/shape.cuh"

namespace bs::gemm {

struct RowRange {
    int group, begin, end;
};

template <class Arguments>
BS_DEVICE int group_size(const Arguments& a, int group) {
    long long size = a.sizes_are_64_bits ? static_cast<const long long*>(a.group_sizes)[group]
                                         : static_cast<const int*>(a.group_sizes)[group];
    return size < 0 ? 0 : size > a.m ? a.m : static_cast<int>(size);
}

// The blockIdx.z-th group that has rows, found by all threads together; `total` rows have a group.
template <class Shape>
BS_DEVICE RowRange find_rows(const typename Shape::Arguments& a, int& total) {
    __shared__ int counts[Shape::WARPS], sums[Shape::WARPS];
    __shared__ RowRange found;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wanted = blockIdx.z;
    const int each = (a.groups + Shape::THREADS - 1) / Shape::THREADS, first = threadIdx.x * each;
    int own_count = 0, own_rows = 0;
    for (int g = first; g < min(first + each, a.groups); g++) {
        int size = group_size(a, g);
        own_count += size > 0;
        own_rows = min(own_rows + size, a.m);
    }
    int count = own_count, rows = own_rows;  // of this lane and those before it
    for (int step = 1; step < 32; step *= 2) {
        int other_count = __shfl_up_sync(~0u, count, step), other = __shfl_up_sync(~0u, rows, step);
        if (lane >= step) count += other_count, rows = min(rows + other, a.m);
    }
    int start = __shfl_up_sync(~0u, rows, 1), rank = count - own_count;
    if (lane == 0) start = 0;
    if (lane == 31) counts[warp] = count, sums[warp] = rows;
    if (threadIdx.x == 0) found = RowRange{-1, 0, 0};
    __syncthreads();
    total = 0;
    for (int w = 0; w < Shape::WARPS; w++) {
        if (w < warp) rank += counts[w], start = min(start + sums[w], a.m);
        total = min(total + sums[w], a.m);
    }
    if (rank <= wanted && wanted < rank + own_count)
        for (int g = first; g < min(first + each, a.groups); g++) {
            int end = min(start + group_size(a, g), a.m);
            if (group_size(a, g) > 0 && rank++ == wanted) found = RowRange{g, start, end};
            start = end;
        }
    __syncthreads();
    return found;
}

}  // namespace bs::gemm
