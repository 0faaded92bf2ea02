// Stores of 32 bytes (sm_100 and later), which L1 does not keep.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// To a multiple of 32 bytes.
BS_DEVICE void store_32_bytes(void* to, const u32 (&d)[8]) {
    BS_PTX(store_32_bytes(to, d), "st.global.L1::no_allocate.v8.b32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8};" ::"l"(to), "r"(d[0]), "r"(d[1]),
           "r"(d[2]), "r"(d[3]), "r"(d[4]), "r"(d[5]), "r"(d[6]), "r"(d[7])
           : "memory");
}

}  // namespace bs::ptx
