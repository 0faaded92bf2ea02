// setmaxnreg (Hopper): the warpgroups of a CTA share its registers out anew after the launch.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// All warps of a warpgroup. Those that give registers back must have done so before others get more.
template <int COUNT>
BS_DEVICE void keep_registers() {
    BS_PTX(keep_registers(COUNT), "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
BS_DEVICE void take_registers() {
    BS_PTX(take_registers(COUNT), "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// The compiler takes the number for one that it cannot compute again, and keeps it in a register.
#ifdef __CUDACC__
BS_DEVICE void hold(u32& number) { asm volatile("" : "+r"(number)); }
BS_DEVICE void hold(int& number) { asm volatile("" : "+r"(number)); }
BS_DEVICE void hold(long long& number) { asm volatile("" : "+l"(number)); }
#else
template <class Number>
BS_DEVICE void hold(Number&) {}
#endif

}  // namespace bs::ptx
