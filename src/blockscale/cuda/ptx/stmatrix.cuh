// stmatrix: a warp stores 8 x 8 matrices of 16-bit numbers out of the registers in which mma leaves them.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// Four matrices, transposed: lane 8 i + j gives the address of column j of matrix i, which becomes 16 bytes.
BS_DEVICE void stmatrix_x4_transposed(u32 to, const u32 (&d)[4]) {
    BS_PTX(stmatrix_transposed(to, d, 4), "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(d[0]), "r"(d[1]),
           "r"(d[2]), "r"(d[3])
           : "memory");
}

}  // namespace bs::ptx
