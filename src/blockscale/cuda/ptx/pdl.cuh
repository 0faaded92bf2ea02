// PDL (programmatic dependent launch), from sm_90 on: a kernel overlaps with its neighbours in the stream. These do
// nothing in a kernel that was launched without it, and on the host, which runs one kernel after the other.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// CTAs of the next kernel may start where CTAs of this one have ended; that kernel waits by itself for what this
// one writes.
BS_DEVICE void trigger_dependents() {
#if __CUDA_ARCH__ >= 900
    BS_PTX(nothing(), "griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What the kernel before wrote may be read after this.
BS_DEVICE void wait_for_prerequisites() {
#if __CUDA_ARCH__ >= 900
    BS_PTX(nothing(), "griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace bs::ptx
