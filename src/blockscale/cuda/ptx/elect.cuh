// elect.sync (Hopper): one lane of a warp is chosen.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// True in one lane of the whole warp, the same one each time. Where the compiler sees that one lane is left, it issues
// tcgen05 and TMA as uniform instructions; elsewhere it puts a loop over lanes around each of them.
BS_DEVICE bool elect_one() {
    u32 elected = 0;
    BS_PTX(elect_one(elected), "{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
    return elected != 0;
}

}  // namespace bs::ptx
