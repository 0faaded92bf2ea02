// Which instruction sets this CPU has.
#pragma once
#include "abi.h"

namespace blockscale {

// The best one that the library has kernels for. What the system claims is tried where a wrong claim would end the
// process: emulators and hypervisors have been seen to offer instructions that trap.
Isa best_isa();

#if defined(__x86_64__)
bool has_vnni();  // of 512 bits
#endif

}  // namespace blockscale
