// TMA (Hopper): tensor copies by a CUtensorMap, which one thread issues and an mbarrier counts.
#pragma once
#include "ptx/mbarrier.cuh"

namespace bs::ptx::tma {

// A box of a matrix; what lies beyond the matrix becomes zero.
BS_DEVICE void load(u32 to, const void* map, int column, int row, u32 barrier) {
    BS_PTX(tma_load(to, map, {column, row}, barrier),
           "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
           "[%4];" ::"r"(to),
           "l"(map), "r"(column), "r"(row), "r"(barrier)
           : "memory");
}

// The same of three dimensions.
BS_DEVICE void load(u32 to, const void* map, int first, int second, int third, u32 barrier) {
    BS_PTX(tma_load(to, map, {first, second, third}, barrier),
           "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
           "[%1, {%2, %3, %4}], [%5];" ::"r"(to),
           "l"(map), "r"(first), "r"(second), "r"(third), "r"(barrier)
           : "memory");
}

// The same of four dimensions.
BS_DEVICE void load(u32 to, const void* map, int first, int second, int third, int fourth, u32 barrier) {
    BS_PTX(tma_load(to, map, {first, second, third, fourth}, barrier),
           "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
           "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
           "l"(map), "r"(first), "r"(second), "r"(third), "r"(fourth), "r"(barrier)
           : "memory");
}

// Bytes that lie one after the other, by no map: their number and both addresses are multiples of 16.
BS_DEVICE void load_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    BS_PTX(bulk_load(to, from, bytes, barrier),
           "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
           "r"(bytes), "r"(barrier)
           : "memory");
}

// A map that copies will use soon. Nothing on the host, which has no cache of maps.
BS_DEVICE void prefetch(const void* map) {
#if __CUDA_ARCH__ >= 900
    BS_PTX(nothing(), "prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

// The same boxes to the shared memory of this CTA, in the words that kernels without clusters use: sm_120 takes slots of
// sub-byte elements in no others, and its driver reserves memory for clusters where it sees them.
BS_DEVICE void load_cta(u32 to, const void* map, int column, int row, u32 barrier) {
    BS_PTX(tma_load(to, map, {column, row}, barrier),
           "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
           "[%4];" ::"r"(to),
           "l"(map), "r"(column), "r"(row), "r"(barrier)
           : "memory");
}
BS_DEVICE void load_cta(u32 to, const void* map, int first, int second, int third, u32 barrier) {
    BS_PTX(tma_load(to, map, {first, second, third}, barrier),
           "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%0], "
           "[%1, {%2, %3, %4}], [%5];" ::"r"(to),
           "l"(map), "r"(first), "r"(second), "r"(third), "r"(barrier)
           : "memory");
}

// A box of a matrix to the same place of every CTA of the cluster that `ctas` has a bit for. Each of them counts the
// bytes at its own mbarrier.
BS_DEVICE void load_multicast(u32 to, const void* map, int column, int row, u32 barrier, u16 ctas) {
    BS_PTX(tma_load_multicast(to, map, {column, row}, barrier, ctas),
           "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
           "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
           "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(ctas)
           : "memory");
}

// TMA may write where this thread has read or stored before: its accesses come first.
BS_DEVICE void fence_after_stores() { BS_PTX(fence_proxy_async(), "fence.proxy.async.shared::cta;" ::: "memory"); }

// TMA may read what other threads stored in global memory, and this one knows to be there.
BS_DEVICE void fence_after_stores_elsewhere() { BS_PTX(fence_proxy_async(), "fence.proxy.async.global;" ::: "memory"); }

}  // namespace bs::ptx::tma
