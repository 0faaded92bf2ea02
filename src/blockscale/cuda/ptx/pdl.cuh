// When a kernel that is launched with leave to overlap meets its neighbours in the stream, from sm_90 on.
// Nothing happens otherwise.
#pragma once

#ifdef __CUDACC__

// Thread blocks of the next kernel may take the places that those of this one leave; it waits inside for all
// that this one writes.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What the kernel before wrote may be read after this.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#else  // the host runs one kernel after the other

inline void let_next_start() {}
inline void wait_for_previous() {}

#endif
