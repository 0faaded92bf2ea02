// Blocks of a cluster (from Hopper on) wait for each other and read each other's shared memory.
#pragma once
#include "ptx/ptx.cuh"

// What this block wrote can be read by the others when they meet.
BS_DEVICE void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// All have read what they wanted, and used it: this orders nothing, so that stores to global memory are not waited
// for, and a load whose value is not needed yet might come later.
BS_DEVICE void leave_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// What stands at this address in the memory of another block.
BS_DEVICE float4 load_of_block(u32 address, int block) {
    float4 v;
    asm volatile(
        "{.reg .u32 at; mapa.shared::cluster.u32 at, %4, %5; ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [at];}"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "r"(address), "r"(block));
    return v;
}
