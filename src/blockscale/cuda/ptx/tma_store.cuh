// TMA from shared to global memory. One thread issues, and waits until shared memory has been read.
#pragma once
#include "ptx/tma.cuh"

namespace bs::ptx::tma {

// A box of a matrix; what lies beyond the matrix is not stored. Threads that wrote the box have fenced
// (`fence_after_stores`) and met this one before.
BS_DEVICE void store(const void* map, int column, int row, u32 from) {
    BS_PTX(tma_store(map, {column, row}, from), "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
           "r"(row), "r"(from)
           : "memory");
}

BS_DEVICE void store_commit() { BS_PTX(bulk_commit(), "cp.async.bulk.commit_group;" ::: "memory"); }

// Until shared memory of all but the last PENDING groups of this thread has been read.
template <int PENDING>
BS_DEVICE void store_wait_read() {
    BS_PTX(bulk_wait(PENDING), "cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Until all groups of this thread are stored.
BS_DEVICE void store_wait() { BS_PTX(bulk_wait(0), "cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace bs::ptx::tma
