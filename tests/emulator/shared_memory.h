// The shared memory of a CTA: bytes, who accessed them last, and which of them are mbarriers.
//
// A shared::cluster address is the rank of a CTA in its cluster << 24 | offset. Offsets begin at 0x400 with the __shared__
// variables of the kernel; dynamic shared memory follows. The kernel's compiler has placed the variables in memory that
// all CTAs have in common: while a thread of another CTA runs, they lie in `bytes`.
#pragma once
#include "machine.h"

namespace bs::emulator {

constexpr u32 FIRST_OFFSET = 0x400, STATIC_ALIGNMENT = 128;
constexpr u32 CELL_BYTES = 2;
constexpr u8 POISON = 0xff;  // NaN in every float format

struct Mbarrier;

// The last write of two bytes, and reads since then.
struct Cell {
    Stamp write, reads[3];
    bool is_mbarrier = false;
};

// Who accesses memory, and what it knows.
struct Accessor {
    uint32_t agent, clock;
    const Clock* thread;   // whose knowledge counts: that of one thread,
    const Known* gathered;  // or of several
    bool is_async_proxy;

    bool knows(const Stamp& stamp) const {
        if (stamp.agent == 0 || (stamp.agent == agent && !is_async_proxy)) return true;
        const bool crosses = is_async_proxy && !machine->agents[stamp.agent].is_async_proxy;
        return stamp.clock <= (crosses ? proxied(stamp.agent) : seen(stamp.agent));
    }
    bool knows_read(const Stamp& stamp) const {
        return stamp.agent == 0 || stamp.agent == agent || stamp.clock <= seen(stamp.agent);
    }
    uint32_t seen(uint32_t other) const { return thread ? thread->seen(other) : Known::at(gathered->seen, other); }
    uint32_t proxied(uint32_t other) const {
        return thread ? thread->proxied(other) : Known::at(gathered->proxied, other);
    }
};

inline Accessor this_thread() {
    const Clock& clock = machine->current->clock;
    return {clock.agent, clock.own, &clock, nullptr, false};
}

struct SharedMemory {
    Cta& cta;
    u32 static_bytes, end;  // offsets run to `end`
    std::vector<u8> storage;
    u8* bytes;  // of offset 0; as aligned as its address says
    std::vector<Cell> cells;
    std::map<u32, std::unique_ptr<Mbarrier>> mbarriers;

    SharedMemory(Cta& cta, u32 static_bytes, u32 dynamic_bytes)
        : cta(cta),
          static_bytes((static_bytes + STATIC_ALIGNMENT - 1) / STATIC_ALIGNMENT * STATIC_ALIGNMENT),
          end(FIRST_OFFSET + this->static_bytes + dynamic_bytes),
          storage(end + 1024, POISON),
          bytes(storage.data() + (-reinterpret_cast<uintptr_t>(storage.data()) & 1023)),
          cells(end / CELL_BYTES + 1) {}

    u32 dynamic_offset() const { return FIRST_OFFSET + static_bytes; }
    static u8* first_static() {
        const uintptr_t begin = reinterpret_cast<uintptr_t>(machine->kernel.begin);
        return reinterpret_cast<u8*>(begin / STATIC_ALIGNMENT * STATIC_ALIGNMENT);
    }

    bool holds(const void* pointer, u32& offset) const {
        const u8 *p = static_cast<const u8*>(pointer), *dynamic = bytes + dynamic_offset();
        if (p >= dynamic && p < bytes + end) return offset = u32(p - bytes), true;
        if (p >= machine->kernel.begin && p < machine->kernel.end)
            return offset = FIRST_OFFSET + u32(p - first_static()), true;
        return false;
    }

    u8* at(u32 offset) const {
        const bool is_static = offset < dynamic_offset();
        return is_static && machine->placed == &cta ? first_static() + (offset - FIRST_OFFSET) : bytes + offset;
    }

    // An access is known to all that come later; none may be unknown to this one.
    void note(u32 offset, u32 size, bool writes, const Accessor& by, const char* name);

    void place() const {
        std::memcpy(machine->kernel.begin, bytes + FIRST_OFFSET + (machine->kernel.begin - first_static()),
                    size_t(machine->kernel.end - machine->kernel.begin));
    }
    void take_away() const {
        std::memcpy(bytes + FIRST_OFFSET + (machine->kernel.begin - first_static()), machine->kernel.begin,
                    size_t(machine->kernel.end - machine->kernel.begin));
    }
};

inline std::string described(const Stamp& stamp) { return machine->agents[stamp.agent].name; }

[[noreturn]] inline void report_race(const char* name, const char* access, const std::string& where, const char* other,
                                     const Stamp& stamp, const Accessor& by) {
    const bool lacks_fence = by.is_async_proxy && !machine->agents[stamp.agent].is_async_proxy &&
                             by.seen(stamp.agent) >= stamp.clock;
    fail(format("race: %s %s %s, which %s %s, and %s", name, access, where.c_str(), described(stamp).c_str(),
                         other,
                         lacks_fence ? "no fence.proxy.async shows that to the async proxy" : "nothing orders the two"));
}

// Takes the place of this agent's last read, or of one that is known to it.
inline void note_read(Cell& cell, const Accessor& by) {
    Stamp* place = &cell.reads[0];
    for (Stamp& read : cell.reads)
        if (read.agent == by.agent) {
            place = &read;
            break;
        } else if (by.knows_read(read)) {
            place = &read;
        }
    *place = {by.agent, by.clock};
}

// Lanes of a warp may store equal numbers to one place by one instruction; which, a store does not tell.
inline bool are_of_one_warp(const Stamp& stamp, const Accessor& by) {
    const Warp* warp = machine->agents[stamp.agent].warp;
    return warp && warp == machine->agents[by.agent].warp;
}

template <class Where>
void note_in(Cell& cell, bool writes, const Accessor& by, const char* name, const Where& where) {
    if (!by.knows(cell.write) && !(writes && are_of_one_warp(cell.write, by)))
        report_race(name, writes ? "writes" : "reads", where(), "wrote", cell.write, by);
    if (writes) {
        for (Stamp& read : cell.reads) {
            if (!by.knows_read(read)) report_race(name, "writes", where(), "read", read, by);
            read = {};
        }
        cell.write = {by.agent, by.clock};
        return;
    }
    note_read(cell, by);
}

inline void SharedMemory::note(u32 offset, u32 size, bool writes, const Accessor& by, const char* name) {
    BS_REQUIRE(offset >= FIRST_OFFSET && offset + size <= end,
               "%s of shared memory 0x%x to 0x%x, which ends at 0x%x", name, offset, offset + size, end);
    for (u32 i = offset / CELL_BYTES; i <= (offset + size - 1) / CELL_BYTES; i++) {
        BS_REQUIRE(!cells[i].is_mbarrier, "%s of shared memory 0x%x, which is an mbarrier", name, i * CELL_BYTES);
        note_in(cells[i], writes, by, name,
                [&] { return format("shared memory 0x%x of %s", i * CELL_BYTES, cta.name().c_str()); });
    }
}

// A place in the shared memory of some CTA of the cluster.
struct Place {
    Cta* cta;
    u32 offset;

    u8* pointer() const { return cta->shared->at(offset); }
};

inline Place place_of(u32 address, u32 size, u32 alignment, const char* name) {
    Cluster& cluster = *machine->current->cta->cluster;
    const u32 rank = address >> 24, offset = address & 0xffffff;
    BS_REQUIRE(rank < cluster.ctas.size(), "%s: address 0x%x is in CTA %u of a cluster of %zu", name, address, rank,
               cluster.ctas.size());
    Cta& cta = *cluster.ctas[rank];
    BS_REQUIRE(cta.living > 0, "%s: address 0x%x is in %s, which has ended", name, address, cta.name().c_str());
    BS_REQUIRE(offset >= FIRST_OFFSET && offset + size <= cta.shared->end,
               "%s: 0x%x to 0x%x is not in shared memory, which ends at 0x%x", name, offset, offset + size,
               cta.shared->end);
    BS_REQUIRE(offset % alignment == 0, "%s: address 0x%x is no multiple of %u", name, address, alignment);
    const Clock& clock = machine->current->clock;
    if (&cta != machine->current->cta) cta.touched[clock.agent] = clock.own;
    return {&cta, offset};
}

}  // namespace bs::emulator
