// mbarrier: barriers in shared memory that count arrivals of threads and bytes of asynchronous copies.
#pragma once
#include "ptx/shared.cuh"

namespace bs::ptx {

BS_DEVICE void mbarrier_init(u32 barrier, int arrivals) {
    BS_PTX(mbarrier_init(barrier, arrivals), "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// By the thread that initialised barriers, after the last one and before copies arrive there or the CTA synchronises.
BS_DEVICE void mbarrier_init_fence() {
    BS_PTX(mbarrier_init_fence(), "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}

BS_DEVICE void mbarrier_arrive(u32 barrier) {
    BS_PTX(mbarrier_arrive(barrier), "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At the barrier that CTA `rank` of the cluster has at this address.
BS_DEVICE void mbarrier_arrive_at(u32 barrier, int rank) {
    BS_PTX(mbarrier_arrive(::bs::host::mapa(barrier, rank)),
           "{.reg .u32 at; mapa.shared::cluster.u32 at, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [at];}" ::"r"(
               barrier),
           "r"(rank)
           : "memory");
}

// Arrives, and `bytes` more must come before the phase completes.
BS_DEVICE void mbarrier_arrive_expect_tx(u32 barrier, int bytes) {
    BS_PTX(mbarrier_arrive_expect_tx(barrier, bytes),
           "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Until the phase of this parity has completed: the first phase has parity 0.
BS_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
    u32 complete = 1;  // the host's twin waits by itself
    do
        BS_PTX(mbarrier_wait(barrier, parity),
               "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(complete)
               : "r"(barrier), "r"(parity)
               : "memory");
    while (!complete);
}

}  // namespace bs::ptx
