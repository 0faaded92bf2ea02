// cp.async: copies from global to shared memory that pass no register.
#pragma once
#include "ptx/shared.cuh"

namespace bs::ptx {

// 16 bytes, past L1.
BS_DEVICE void cp_async(u32 to, const void* from) {
    BS_PTX(cp_async(to, from, 16, 16), "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// 16 bytes, or zeros if `present` is false; then nothing is read.
BS_DEVICE void cp_async(u32 to, const void* from, bool present) {
    BS_PTX(cp_async(to, from, 16, present ? 16 : 0), "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
           : "memory");
}

BS_DEVICE void cp_async_float(u32 to, const float* from) {
    BS_PTX(cp_async(to, from, 4, 4), "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

BS_DEVICE void cp_async_commit() { BS_PTX(cp_async_commit(), "cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's groups are under way.
template <int PENDING>
BS_DEVICE void cp_async_wait() {
    BS_PTX(cp_async_wait(PENDING), "cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace bs::ptx
