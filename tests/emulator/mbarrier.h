// mbarrier objects: phases that complete when all arrivals and all expected bytes have come.
#pragma once
#include "shared_memory.h"

namespace bs::emulator {

constexpr long MOST_ARRIVALS = (1 << 20) - 1, MOST_BYTES = (1 << 20) - 1;

struct Mbarrier {
    Cta& cta;
    u32 offset;
    long count, pending;  // arrivals: of a phase, and those that have not come
    long bytes = 0;       // that are expected and have not come
    unsigned phase = 0;
    Gathering arrived;  // what the arrivals of this phase know
    Lesson completed;   // what waiters of the last phase learn
    Waiters waiters;
    uint32_t agent;    // of the bulk copies that it counts
    Stamp initialised;  // which the async proxy and other CTAs see after a fence

    Mbarrier(Cta& cta, u32 offset, long count)
        : cta(cta), offset(offset), count(count), pending(count) {
        agent = machine->add_agent(format("a copy that mbarrier 0x%x of %s counts", offset, cta.name().c_str()), true);
        initialised = {machine->current->clock.agent, machine->current->clock.own};
    }

    std::string state() const {
        return format("mbarrier 0x%x of %s in phase %u, with %ld of %ld arrivals and %ld bytes to come", offset,
                      cta.name().c_str(), phase, pending, count, bytes);
    }

    // The phase in which bytes will be counted that are asked for now.
    u32 epoch() const { return phase + 1; }

    void arrive(Thread& by) {
        BS_REQUIRE(pending > 0, "an arrival too many at %s", state().c_str());
        arrived.add(by.clock);
        pending--;
        complete_if_due();
    }
    // By the hardware, whose copies up to `clock` are done.
    void arrive_for(uint32_t by, uint32_t clock) {
        BS_REQUIRE(pending > 0, "an arrival too many at %s", state().c_str());
        arrived.add(by, clock);
        pending--;
        complete_if_due();
    }
    void expect(long more) {
        bytes += more;
        BS_REQUIRE(bytes <= MOST_BYTES, "more than %ld bytes are expected at %s", MOST_BYTES, state().c_str());
    }
    void count_bytes(long come, uint32_t epoch) {
        bytes -= come;
        BS_REQUIRE(bytes >= -MOST_BYTES, "more than %ld bytes nobody expects at %s", MOST_BYTES, state().c_str());
        arrived.add(agent, epoch);
        complete_if_due();
    }
    void complete_if_due() {
        if (pending || bytes) return;
        phase++;
        pending = count;
        completed = Lesson(arrived.known());
        arrived = Gathering();
        machine->wake(waiters);
    }
};

inline void initialise_mbarrier(const Place& place, long count) {
    BS_REQUIRE(count >= 1 && count <= MOST_ARRIVALS, "mbarrier.init with %ld arrivals", count);
    SharedMemory& shared = *place.cta->shared;
    BS_REQUIRE(!shared.mbarriers.count(place.offset), "mbarrier.init at 0x%x, which is an mbarrier", place.offset);
    shared.note(place.offset, 8, true, this_thread(), "mbarrier.init");
    for (u32 i = 0; i < 8 / CELL_BYTES; i++) shared.cells[place.offset / CELL_BYTES + i].is_mbarrier = true;
    shared.mbarriers[place.offset] = std::make_unique<Mbarrier>(*place.cta, place.offset, count);
}

// By a thread that must know that the barrier has been initialised, or by the async proxy for it.
inline Mbarrier& mbarrier_at(const Place& place, const char* name, bool is_async_proxy) {
    auto& all = place.cta->shared->mbarriers;
    const auto found = all.find(place.offset);
    BS_REQUIRE(found != all.end(), "%s at 0x%x of %s, where no mbarrier has been initialised", name, place.offset,
               place.cta->name().c_str());
    Mbarrier& barrier = *found->second;
    const Clock& clock = machine->current->clock;
    const Stamp& made = barrier.initialised;
    BS_REQUIRE(clock.seen(made.agent) >= made.clock, "%s at mbarrier 0x%x, whose initialisation nothing orders before it",
               name, place.offset);
    BS_REQUIRE(!is_async_proxy || clock.proxied(made.agent) >= made.clock,
               "%s at mbarrier 0x%x, whose initialisation no fence shows to the async proxy", name, place.offset);
    return barrier;
}

inline Mbarrier& mbarrier_at(u32 address, const char* name, bool is_async_proxy = false) {
    return mbarrier_at(place_of(address, 8, 8, name), name, is_async_proxy);
}

inline void wait_for_phase(Mbarrier& barrier, u32 parity) {
    while ((barrier.phase & 1) == (parity & 1))
        machine->wait(barrier.waiters, [&barrier, parity] {
            return barrier.state() + format(", for the phase of parity %u", parity & 1);
        });
    barrier.completed.teach(machine->current->clock);
}

}  // namespace bs::emulator
