// movmatrix: a warp transposes an 8 x 8 matrix of 16-bit numbers in its registers.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// Lane 4 i + j has numbers 2 j and 2 j + 1 of row i, before and after.
BS_DEVICE u32 transposed(u32 matrix) {
    u32 d;
    BS_PTX(movmatrix_transposed(d, matrix), "movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(matrix));
    return d;
}

}  // namespace bs::ptx
