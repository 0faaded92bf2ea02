// cp.async, and bulk copies out of shared memory: a thread's copies, which it commits in groups and waits for in order.
#pragma once
#include "shared_memory.h"

namespace bs::emulator {

struct CopyGroups {
    uint32_t agent;
    std::vector<std::function<void()>> open;                  // not committed
    std::vector<std::vector<std::function<void()>>> groups;  // committed; empty when carried out
    size_t done = 0;                                         // groups

    uint32_t epoch() const { return uint32_t(groups.size()) + 1; }  // of what is issued now

    void add(std::function<void()> copy) {
        machine->counts.async_copies++;
        if (machine->is_early())
            copy();
        else
            open.push_back(std::move(copy));
    }
    void commit() {
        groups.push_back(std::move(open));
        open.clear();
    }
    // Until at most `left` groups are under way.
    void wait(size_t left) {
        for (; done + left < groups.size(); done++)
            for (auto& copy : groups[done]) copy();
    }
};

inline CopyGroups& copies_of(Thread& thread) {
    if (!thread.copies) {
        thread.copies = std::make_shared<CopyGroups>();
        thread.copies->agent = thread.clock.copies =
            machine->add_agent("a cp.async of " + thread.name(), false);
    }
    return *thread.copies;
}

// `size` bytes, of which the first `present` are read and the others zero.
inline void copy_async(u32 to, const void* from, u32 size, u32 present) {
    Thread& self = *machine->current;
    const Place place = place_of(to, size, size, "cp.async");
    BS_REQUIRE(place.cta == self.cta, "cp.async to the shared memory of another CTA");
    BS_REQUIRE(reinterpret_cast<uintptr_t>(from) % size == 0, "cp.async from an address that is no multiple of %u", size);
    CopyGroups& copies = copies_of(self);
    Accessor by = this_thread();
    by.agent = copies.agent, by.clock = copies.epoch();
    place.cta->shared->note(place.offset, size, true, by, "cp.async");
    std::memset(place.pointer(), POISON, size);
    copies.add([place, from, size, present] {
        std::memset(place.pointer(), 0, size);
        std::memcpy(place.pointer(), from, present);
    });
}

}  // namespace bs::emulator
