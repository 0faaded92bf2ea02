// Loads and stores that kernels make by plain C++: gcc calls these functions for each of them, as it would for its thread
// sanitizer, whose library is not linked.
#pragma once
#include "shared_memory.h"

namespace bs::emulator {

// What another CTA, or another thread, stored in global memory must be known to whoever loads it or stores over it. Loads
// are not remembered: inputs are read too often.
inline void note_global(const void* pointer, u32 size, bool writes, const Accessor& by, const char* name) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(pointer) / CELL_BYTES;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(pointer) + size - 1) / CELL_BYTES;
    for (uintptr_t cell = first; cell <= last; cell++) {
        const auto found = machine->global_writes.find(cell);
        if (found != machine->global_writes.end() && !by.knows(found->second) &&
            !(writes && are_of_one_warp(found->second, by)))
            report_race(name, writes ? "writes" : "reads", format("global memory %p", pointer),
                        "wrote", found->second, by);
        if (writes) machine->global_writes[cell] = {by.agent, by.clock};
    }
}

inline void note_access(const void* pointer, u32 size, bool writes) {
    if (!machine || !machine->current) return;
    SharedMemory& shared = *machine->current->cta->shared;
    u32 offset;
    if (shared.holds(pointer, offset))
        shared.note(offset, size, writes, this_thread(), writes ? "a store" : "a load");
    else if (!machine->current->fiber.holds(pointer))
        note_global(pointer, size, writes, this_thread(), writes ? "a store" : "a load");
}

}  // namespace bs::emulator

#define BS_HOOKS(SIZE)                                                                                     \
    void __tsan_read##SIZE(void* at) { bs::emulator::note_access(at, SIZE, false); }                       \
    void __tsan_write##SIZE(void* at) { bs::emulator::note_access(at, SIZE, true); }                       \
    void __tsan_unaligned_read##SIZE(void* at) { bs::emulator::note_access(at, SIZE, false); }             \
    void __tsan_unaligned_write##SIZE(void* at) { bs::emulator::note_access(at, SIZE, true); }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
BS_HOOKS(1)
BS_HOOKS(2)
BS_HOOKS(4)
BS_HOOKS(8)
BS_HOOKS(16)
void __tsan_read_range(void* at, size_t size) { bs::emulator::note_access(at, bs::u32(size), false); }
void __tsan_write_range(void* at, size_t size) { bs::emulator::note_access(at, bs::u32(size), true); }
}
