// Flags in global memory, by which a CTA tells another that what it wrote can be read.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// By one thread, when all that wrote have met it.
BS_DEVICE void raise_flag(u32* flag) {
    BS_PTX(raise_flag(flag), "st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}

BS_DEVICE void wait_for_flag(const u32* flag) {
    u32 raised = 1;  // the host's twin waits by itself
    do
        BS_PTX(wait_for_flag(flag), "ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
    while (!raised);
}

// Before the next launch that raises it.
BS_DEVICE void lower_flag(u32* flag) {
    BS_PTX(lower_flag(flag), "st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(flag) : "memory");
}

}  // namespace bs::ptx
