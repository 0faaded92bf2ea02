// Rows of x that belong to no group are zero in the output.
#pragma once
#include "gemm/epilogue.cuh"

namespace bs::gemm {

// Rows from `first` on, by all threads of CTA `cta` of `ctas`.
template <class Shape>
BS_DEVICE void clear_rows_from(const typename Shape::Arguments& a, int first, int cta, int ctas) {
    for (int row = first + cta; row < a.m; row += ctas)
        for (int i = threadIdx.x; i < a.n; i += Shape::THREADS)
            store_number(a.out, row * a.out_stride + i, 0.0f, Shape::OUT);
}

}  // namespace bs::gemm
