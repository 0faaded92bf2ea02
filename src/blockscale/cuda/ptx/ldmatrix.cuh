// ldmatrix: fragments of matrices from shared memory.
#pragma once
#include "ptx/shared.cuh"

namespace bs::ptx {

// Four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
BS_DEVICE void ldmatrix_x4(u32 (&d)[4], u32 address) {
    BS_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
           : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
           : "r"(address));
}

}  // namespace bs::ptx
