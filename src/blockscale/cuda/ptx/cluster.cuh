// Clusters (Hopper): CTAs that wait for each other and read each other's shared memory (DSMEM).
#pragma once
#include "ptx/shared.cuh"

namespace bs::ptx {

// All CTAs of the cluster; what each wrote before can be read by the others after.
BS_DEVICE void cluster_sync() {
    BS_PTX(cluster_sync(true), "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// All CTAs have read what they wanted, and used it. This orders no memory accesses, so nobody waits for stores to
// global memory; a load from DSMEM whose value is not yet used may still be under way.
BS_DEVICE void cluster_sync_relaxed() {
    BS_PTX(cluster_sync(false), "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// 16 bytes at this address in the shared memory of CTA `rank` of the cluster.
BS_DEVICE float4 load_dsmem(u32 address, int rank) {
    float4 v;
    BS_PTX(load_dsmem(v, address, rank),
           "{.reg .u32 at; mapa.shared::cluster.u32 at, %4, %5; ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [at];}"
           : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
           : "r"(address), "r"(rank));
    return v;
}

// The same, the other way.
BS_DEVICE void store_dsmem(u32 address, int rank, float4 v) {
    BS_PTX(store_dsmem(address, rank, v),
           "{.reg .u32 at; mapa.shared::cluster.u32 at, %0, %1; st.shared::cluster.v4.f32 [at], {%2,%3,%4,%5};}" ::"r"(address),
           "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
           : "memory");
}

}  // namespace bs::ptx
