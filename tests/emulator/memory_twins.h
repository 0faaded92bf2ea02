// Host twins of loads, stores and copies of shared memory.
#pragma once
#include "sync_twins.h"
#include "tensor_map.h"

namespace bs::host {

u32 shared_address(const void* pointer) {
    if (is_alone()) return u32(reinterpret_cast<uintptr_t>(pointer));
    u32 offset;
    Cta& cta = *machine->current->cta;
    BS_REQUIRE(cta.shared->holds(pointer, offset), "the address of %p, which is not in shared memory", pointer);
    return u32(cta.rank) << 24 | offset;
}

u8* dynamic_shared() {
    const SharedMemory& shared = *machine->current->cta->shared;
    return shared.bytes + shared.dynamic_offset();
}

void load_shared(void* to, u32 from, int size) {
    const Place place = place_of(from, u32(size), u32(size), "ld.shared");
    place.cta->shared->note(place.offset, u32(size), false, this_thread(), "ld.shared");
    if (place.cta != machine->current->cta) machine->counts.dsmem_loads++;
    std::memcpy(to, place.pointer(), size_t(size));
}

void store_shared(u32 to, const void* from, int size) {
    const Place place = place_of(to, u32(size), u32(size), "st.shared");
    place.cta->shared->note(place.offset, u32(size), true, this_thread(), "st.shared");
    std::memcpy(place.pointer(), from, size_t(size));
}

void cp_async(u32 to, const void* from, int size, int present) { copy_async(to, from, u32(size), u32(present)); }
void cp_async_commit() { copies_of(*machine->current).commit(); }
void cp_async_wait(int pending) {
    CopyGroups& copies = copies_of(*machine->current);
    copies.wait(size_t(pending));
    machine->current->clock.copies_done = u32(copies.done);
    machine->maybe_switch();
}

void tma_load(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier) {
    const Place at = place_of(barrier, 8, 8, "cp.async.bulk.tensor");
    const int own = machine->current->cta->rank;
    load_box(to, map, coordinates, {own},
             [&](Cta&) -> Mbarrier& { return mbarrier_at(at, "cp.async.bulk.tensor", true); });
    machine->maybe_switch();
}

void tma_load_multicast(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier, u32 ctas) {
    std::vector<int> ranks;
    for (int i = 0; i < 16; i++)
        if (ctas >> i & 1) ranks.push_back(i);
    BS_REQUIRE(ctas && ctas >> machine->current->cta->cluster->ctas.size() == 0,
               "multicast to CTAs %x of a cluster of %zu", ctas, machine->current->cta->cluster->ctas.size());
    load_box(to, map, coordinates, ranks, [&](Cta& cta) -> Mbarrier& {
        return mbarrier_at(Place{&cta, barrier & 0xffffff}, "cp.async.bulk.tensor.multicast", true);
    });
    machine->maybe_switch();
}

}  // namespace bs::host
