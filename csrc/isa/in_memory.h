// Tile instructions do not tell the compiler all that they read: GCC's ldtilecfg names 8 of the 64 bytes of
// a configuration, tileloadd none of a tile, and stores that nobody seems to need may be left out or come late.
#pragma once
#include "isa/vec.h"

namespace blockscale::ISA_NAMESPACE {

// What stands here is stored before the next instruction.
ALWAYS_INLINE void in_memory(const void* read) { asm volatile("" : : "r"(read) : "memory"); }

}  // namespace blockscale::ISA_NAMESPACE
