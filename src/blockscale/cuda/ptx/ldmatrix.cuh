// ldmatrix: fragments of matrices from shared memory.
#pragma once
#include "ptx/shared.cuh"

namespace bs::ptx {

// Four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
BS_DEVICE void ldmatrix_x4(u32 (&d)[4], u32 address) {
    BS_PTX(ldmatrix(d, 4, address), "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
           : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
           : "r"(address));
}

// Four matrices of 8 rows of 16 values, each value to a byte (sm_100, sm_120 and their families). A row is 16 bytes of
// shared memory: 16 values of 4 bits, then 8 bytes that are skipped. A value comes into the low bits of its byte.
BS_DEVICE void ldmatrix_x4_from_4_bits(u32 (&d)[4], u32 address) {
    BS_PTX(ldmatrix_to_bytes(d, 4, address, 4),
           "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%0,%1,%2,%3}, [%4];"
           : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
           : "r"(address));
}

// The same of 16 values of 6 bits, then 4 bytes that are skipped.
BS_DEVICE void ldmatrix_x4_from_6_bits(u32 (&d)[4], u32 address) {
    BS_PTX(ldmatrix_to_bytes(d, 4, address, 6),
           "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b6x16_p32 {%0,%1,%2,%3}, [%4];"
           : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
           : "r"(address));
}

}  // namespace bs::ptx
