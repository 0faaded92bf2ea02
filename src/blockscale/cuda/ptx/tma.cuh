// Copies that the hardware carries out by itself (Hopper), and barriers that count their bytes.
#pragma once
#include "ptx/ptx.cuh"

BS_DEVICE void make_barrier(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After the last `make_barrier`, before copies arrive there or the block meets.
BS_DEVICE void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}

BS_DEVICE void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and `bytes` more must come before the barrier opens.
BS_DEVICE void arrive_and_expect(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Until the barrier has opened for the time of this parity: the first time has parity 0.
BS_DEVICE void wait_at(u32 barrier, u32 parity) {
    u32 open;
    do
        asm volatile(
            "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(open)
            : "r"(barrier), "r"(parity)
            : "memory");
    while (!open);
}

// A box of a matrix; what is beyond the matrix becomes zero.
BS_DEVICE void copy_box(u32 to, const void* map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// Shared memory that this thread used in the ordinary way may be copied to.
BS_DEVICE void order_copies_after_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same of three dimensions.
BS_DEVICE void copy_box(u32 to, const void* map, int first, int second, int third, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(first), "r"(second), "r"(third), "r"(barrier)
        : "memory");
}
