// Host twins of barriers, warp exchanges, flags and registers: ptx/host_twins.cuh declares them.
#pragma once
#include "mbarrier.h"
#include "scheduler.h"

namespace bs::host {

using namespace bs::emulator;

// Outside a launch there is one thread, which waits for nobody.
inline bool is_alone() { return !machine; }

struct Exchanged {
    int lane;
    uint64_t own, lanes[32];
};

void exchange(u32 mask, uint64_t own, uint64_t (&lanes)[32]) {
    Exchanged part{is_alone() ? 0 : machine->current->lane(), own, {}};
    const auto act = [](const std::vector<Exchanged*>& parts) {
        for (Exchanged* to : parts)
            for (const Exchanged* from : parts) to->lanes[from->lane] = from->own;
    };
    if (is_alone())
        for (uint64_t& each : part.lanes) each = own;
    else
        meet_warp("a warp exchange", part, act, mask);
    std::memcpy(lanes, part.lanes, sizeof lanes);
}

void sync_warp(u32 mask) {
    Nothing nothing;
    if (!is_alone()) meet_warp("__syncwarp", nothing, [](const auto&) {}, mask);
}

static void meet_at_barrier(int barrier, std::function<size_t()> needed) {
    Nothing nothing;
    Cta& cta = *machine->current->cta;
    BS_REQUIRE(barrier >= 0 && barrier < 16, "bar.sync %d: barriers are 0 to 15", barrier);
    meet(cta.barriers[barrier], "bar.sync", std::move(needed), nothing, [](const auto&) {});
}

void sync_threads() {
    if (is_alone()) return;
    Cta* cta = machine->current->cta;
    meet_at_barrier(0, [cta] { return size_t(cta->living); });
}

void bar_sync(int barrier, int threads) {
    BS_REQUIRE(threads > 0 && threads % 32 == 0, "bar.sync %d: %d threads are no whole warps", barrier, threads);
    meet_at_barrier(barrier, [threads] { return size_t(threads); });
}

// Threads have used what they read: who writes there next need not know more. What they wrote stays unknown.
static void forget_reads(Cta& cta) {
    for (Cell& cell : cta.shared->cells)
        for (Stamp& read : cell.reads)
            if (machine->agents[read.agent].warp) read = {};
}

void cluster_sync(bool orders) {
    Nothing nothing;
    Cluster* cluster = machine->current->cta->cluster;
    meet(
        cluster->barrier, orders ? "barrier.cluster" : "barrier.cluster.relaxed",
        [cluster] { return size_t(cluster->living); }, nothing,
        [cluster, orders](const auto&) {
            for (auto& cta : cluster->ctas) {
                cta->touched.clear();
                if (!orders) forget_reads(*cta);
            }
        },
        orders);
}

void mbarrier_init(u32 barrier, int arrivals) {
    const Place place = place_of(barrier, 8, 8, "mbarrier.init");
    BS_REQUIRE(place.cta == machine->current->cta, "mbarrier.init in another CTA");
    initialise_mbarrier(place, arrivals);
}

void mbarrier_init_fence() { machine->current->clock.fence_proxies(); }
// Of shared memory or of global memory: which of the two is not told apart.
void fence_proxy_async() { machine->current->clock.fence_proxies(); }

void mbarrier_arrive(u32 barrier) {
    mbarrier_at(barrier, "mbarrier.arrive").arrive(*machine->current);
    machine->maybe_switch();
}

u32 mapa(u32 address, u32 rank) { return (address & 0xffffff) | rank << 24; }

void mbarrier_arrive_expect_tx(u32 barrier, int bytes) {
    Mbarrier& at = mbarrier_at(barrier, "mbarrier.arrive.expect_tx");
    at.expect(bytes);
    at.arrive(*machine->current);
    machine->maybe_switch();
}

void mbarrier_wait(u32 barrier, u32 parity) {
    Mbarrier& at = mbarrier_at(barrier, "mbarrier.try_wait");
    BS_REQUIRE(&at.cta == machine->current->cta, "mbarrier.try_wait in another CTA");
    wait_for_phase(at, parity);
    machine->maybe_switch();
}

void raise_flag(u32* flag) {
    machine->flag_knowledge[flag].add(machine->current->clock);
    *flag = 1;
    machine->wake(machine->flag_waiters[flag]);
    machine->maybe_switch();
}

void wait_for_flag(const u32* flag) {
    while (!*flag)
        machine->wait(machine->flag_waiters[flag], [flag] { return format("the flag at %p", (const void*)flag); });
    machine->current->clock.learn(*machine->flag_knowledge[flag].known());
}

void lower_flag(u32* flag) { *flag = 0; }

uint32_t atomic_update(u32* at, u32 (*change)(u32, u32), u32 value) {
    const u32 before = *at;
    *at = change(before, value);
    if (machine) {
        Gathering& known = machine->flag_knowledge[at];
        known.add(machine->current->clock);
        machine->current->clock.learn(*known.known());
        machine->maybe_switch();
    }
    return before;
}

static void change_registers(int count, bool grows) {
    BS_REQUIRE(count >= 24 && count <= 256 && count % 8 == 0, "setmaxnreg to %d", count);
    Nothing nothing;
    meet_warp("setmaxnreg", nothing, [](const auto&) {});
    Warp& warp = *machine->current->warp;
    Cta& cta = *warp.cta;
    if (machine->current->lane() == 0) {
        const int more = 32 * (count - warp.registers);
        BS_REQUIRE(grows ? more >= 0 : more <= 0, "setmaxnreg.%s from %d registers to %d", grows ? "inc" : "dec",
                   warp.registers, count);
        while (more > cta.free_registers)
            machine->wait(cta.for_registers, [&cta, more] {
                return format("%d registers, of which %d are free", more, cta.free_registers);
            });
        cta.free_registers -= more;
        warp.registers = count;
        machine->wake(cta.for_registers);
    }
    meet_warp("setmaxnreg", nothing, [](const auto&) {});
}

void keep_registers(int count) { change_registers(count, false); }
void take_registers(int count) { change_registers(count, true); }

}  // namespace bs::host
