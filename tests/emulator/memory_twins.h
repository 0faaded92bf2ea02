// Host twins of loads, stores and copies of shared memory.
#pragma once
#include "access_hooks.h"
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
    BS_REQUIRE(at.cta->rank == own, "cp.async.bulk.tensor that counts at the mbarrier of another CTA");
    load_box(to, map, coordinates, {own},
             [&](Cta&) -> Mbarrier& { return mbarrier_at(at, "cp.async.bulk.tensor", true); });
    machine->maybe_switch();
}

// Of what threads stored, the copy sees what a fence between the proxies has made known to it.
void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
    static const char* NAME = "cp.async.bulk";
    const Place at = place_of(barrier, 8, 8, NAME), place = place_of(to, bytes, 16, NAME);
    BS_REQUIRE(place.cta == machine->current->cta && at.cta == place.cta, "cp.async.bulk into another CTA");
    BS_REQUIRE(bytes % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0,
               "cp.async.bulk of %u bytes from %p: multiples of 16 alone", bytes, from);
    Mbarrier* counts = &mbarrier_at(at, NAME, true);
    Accessor reads = this_thread(), writes = reads;
    reads.is_async_proxy = writes.is_async_proxy = true;
    note_global(from, bytes, false, reads, NAME);
    writes.agent = counts->agent, writes.clock = counts->epoch();
    place.cta->shared->note(place.offset, bytes, true, writes, NAME);
    if (machine->launch.timing != EARLIEST) std::memset(place.pointer(), POISON, bytes);
    machine->current->clock.own++;
    machine->issue(NAME, {place.cta}, [=, epoch = counts->epoch()] {
        std::memcpy(place.pointer(), from, bytes);
        counts->count_bytes(bytes, epoch);
    });
    machine->maybe_switch();
}

static std::vector<int> ranks_of(u32 ctas) {
    const size_t size = machine->current->cta->cluster->ctas.size();
    BS_REQUIRE(ctas && ctas >> size == 0, "multicast to CTAs %x of a cluster of %zu", ctas, size);
    std::vector<int> ranks;
    for (int i = 0; i < 16; i++)
        if (ctas >> i & 1) ranks.push_back(i);
    return ranks;
}

void tma_load_multicast(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier, u32 ctas) {
    load_box(to, map, coordinates, ranks_of(ctas), [&](Cta& cta) -> Mbarrier& {
        return mbarrier_at(Place{&cta, barrier & 0xffffff}, "cp.async.bulk.tensor.multicast", true);
    });
    machine->maybe_switch();
}

// With cta_group::2 the barrier may be the peer's.
void tma_load_pair(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier) {
    const Place at = place_of(barrier, 8, 8, "cp.async.bulk.tensor");
    const int own = machine->current->cta->rank;
    BS_REQUIRE(at.cta->rank / 2 == own / 2, "cp.async.bulk.tensor.cta_group::2 that counts outside of the pair");
    load_box(to, map, coordinates, {own},
             [&](Cta&) -> Mbarrier& { return mbarrier_at(at, "cp.async.bulk.tensor", true); });
    machine->maybe_switch();
}

// Each CTA's bytes are counted in its pair, by the CTA whose rank is as even or odd as the given barrier's.
void tma_load_pair_multicast(u32 to, const void* map, std::initializer_list<int> coordinates, u32 barrier, u32 ctas) {
    const u32 odd = barrier >> 24 & 1;
    load_box(to, map, coordinates, ranks_of(ctas), [&](Cta& cta) -> Mbarrier& {
        Cta& counts = *cta.cluster->ctas[(size_t(cta.rank) & ~size_t(1)) | odd];
        return mbarrier_at(Place{&counts, barrier & 0xffffff}, "cp.async.bulk.tensor.multicast", true);
    });
    machine->maybe_switch();
}

void store_32_bytes(void* to, const u32* words) {
    BS_REQUIRE(reinterpret_cast<uintptr_t>(to) % 32 == 0, "st.global.v8 to %p, which is no multiple of 32", to);
    std::memcpy(to, words, 32);
}

}  // namespace bs::host
