// Which thread runs next, and the course of a launch.
//
// With seed 0, warps take turns. Any other seed gives warps random priorities, which change now and then: one warp runs far
// ahead of the others, or falls far behind.
#pragma once
#include "tcgen05.h"
#include "warpgroup.h"

namespace bs::emulator {

inline void place_cta(Cta* cta) {
    Machine& m = *machine;
    if (m.placed == cta) return;
    if (m.placed) m.placed->shared->take_away();
    m.placed = cta;
    if (cta) cta->shared->place();
}

// Products that a thread issued have ended before its CTA does.
inline void check_queues(const Thread& thread) {
    BS_REQUIRE(!thread.tcgen05 || thread.tcgen05->done == thread.tcgen05->operations.size(),
               "%s has issued tcgen05.mma or tcgen05.cp that are not done when its CTA ends", thread.name().c_str());
}

// Nobody may still be about to use its shared memory.
inline void end_cta(Cta& cta) {
    const KnownRef known = cta.at_end.known();
    for (const auto& [agent, clock] : cta.touched)
        BS_REQUIRE(Known::at(known->seen, agent) >= clock,
                   "%s ends, and nothing orders that after what %s did in its shared memory", cta.name().c_str(),
                   machine->agents[agent].name.c_str());
    for (const auto& thread : cta.threads) check_queues(*thread);
    BS_REQUIRE(!cta.tmem || cta.tmem->allocations.empty(), "%s ends with columns of TMEM allocated", cta.name().c_str());
    for (const Pending& each : machine->pending)
        for (const Cta* target : each.targets)
            BS_REQUIRE(target != &cta, "%s ends while %s is under way", cta.name().c_str(), each.name.c_str());
}

inline void end_thread(Thread& thread) {
    Cta& cta = *thread.cta;
    thread.done = true;
    cta.at_end.add(thread.clock);
    thread.warp->living &= ~(1u << thread.lane());
    cta.living--;
    cta.cluster->living--;
    if (!cta.living) end_cta(cta);
    for (auto& [mask, meeting] : thread.warp->meetings) meeting.finish_if_all_came();
    for (auto& [number, meeting] : cta.barriers) meeting.finish_if_all_came();
    cta.cluster->barrier.finish_if_all_came();
}

inline void thread_body(void* argument) {
    Thread& thread = *static_cast<Thread*>(argument);
    machine->kernel.run(machine->arguments);
    end_thread(thread);
    thread.fiber.leave();
}

inline void run_thread(Thread* thread) {
    Machine& m = *machine;
    place_cta(thread->cta);
    m.current = thread;
    m.counts.switches++;
    threadIdx = {thread->index, 0, 0};
    blockIdx = thread->cta->index;
    thread->fiber.resume();
    m.current = nullptr;
    if (thread->done) thread->fiber.end();
    if (m.has_failed) throw std::runtime_error(m.failure);
}

inline Thread* next_thread() {
    Machine& m = *machine;
    Warp* best = nullptr;
    if (m.launch.seed && !m.chance(64)) m.warps[m.chance(unsigned(m.warps.size()))]->priority = m.chance(1u << 20);
    for (Warp* warp : m.warps)
        if (!warp->ready.empty() && (!best || warp->priority > best->priority)) best = warp;
    const size_t which = m.launch.seed ? m.chance(unsigned(best->ready.size())) : 0;
    Thread* thread = best->ready[which];
    best->ready.erase(best->ready.begin() + long(which));
    m.ready--;
    if (!m.launch.seed) best->priority--;  // the others come first
    return thread;
}

inline std::unique_ptr<Cta> make_cta(Cluster& cluster, int rank, HostIndex index) {
    Machine& m = *machine;
    auto cta = std::make_unique<Cta>();
    cta->cluster = &cluster, cta->rank = rank, cta->index = index;
    const u32 static_bytes =
        m.kernel.end == m.kernel.begin ? 0 : u32(m.kernel.end - SharedMemory::first_static());
    cta->shared = std::make_shared<SharedMemory>(*cta, static_bytes, m.launch.shared);
    cta->living = m.launch.threads;
    const int registers = std::min(65536 / int((m.launch.threads + 31) / 32 * 32) / 8 * 8, 255);
    cta->free_registers = 65536 - registers * int(m.launch.threads);
    for (unsigned i = 0; i < m.launch.threads; i++) {
        if (i % 128 == 0) cta->warpgroups.push_back(make_warpgroup(*cta, i / 128));
        if (i % 32 == 0) {
            auto warp = std::make_unique<Warp>();
            warp->cta = cta.get(), warp->index = i / 32, warp->registers = registers;
            warp->group = cta->warpgroups.back().get();
            warp->priority = m.launch.seed ? m.chance(1u << 20) : 1u << 31;
            m.warps.push_back(warp.get());
            cta->warps.push_back(std::move(warp));
        }
        auto thread = std::make_unique<Thread>();
        thread->cta = cta.get(), thread->index = i, thread->warp = cta->warps.back().get();
        thread->warp->living |= 1u << thread->lane();
        thread->clock.agent = m.add_agent(thread->name(), false);
        m.agents.back().warp = thread->warp;
        thread->fiber.start(thread_body, thread.get());
        m.make_ready(thread.get());
        cta->threads.push_back(std::move(thread));
    }
    return cta;
}

inline void start_cluster(unsigned number) {
    Machine& m = *machine;
    const HostIndex& grid = m.launch.grid;
    auto cluster = std::make_unique<Cluster>();
    const unsigned along_y = grid.y / m.launch.cluster;
    const unsigned x = number % grid.x, y = number / grid.x % along_y, z = number / grid.x / along_y;
    cluster->living = m.launch.cluster * m.launch.threads;
    for (unsigned rank = 0; rank < m.launch.cluster; rank++)
        cluster->ctas.push_back(make_cta(*cluster, int(rank), {x, y * m.launch.cluster + rank, z}));
    m.clusters.push_back(std::move(cluster));
}

inline void end_clusters() {
    Machine& m = *machine;
    for (auto& cluster : m.clusters)
        if (!cluster->living) {
            std::erase_if(m.warps, [&](Warp* warp) { return warp->cta->cluster == cluster.get(); });
            if (m.placed && m.placed->cluster == cluster.get()) m.placed = nullptr;
        }
    std::erase_if(m.clusters, [](const auto& cluster) { return !cluster->living; });
}

// Threads that wait for the same thing on one line.
inline std::string state_of_waiters() {
    std::map<std::string, std::vector<const Thread*>> waiting;
    for (const auto& cluster : machine->clusters)
        for (const auto& cta : cluster->ctas)
            for (const auto& thread : cta->threads)
                if (!thread->done)
                    waiting[cta->name() + ": " + (thread->waits_for ? thread->waits_for() : "nothing")].push_back(
                        thread.get());
    std::string all;
    for (const auto& [what, threads] : waiting)
        all += format("\n  %zu threads from %u on wait for %s", threads.size(), threads[0]->index, what.c_str());
    return all;
}

inline void run_launch() {
    Machine& m = *machine;
    const HostIndex& grid = m.launch.grid;
    const unsigned all = grid.x * (grid.y / m.launch.cluster) * grid.z;
    for (unsigned started = 0, ended = 0; ended < all;) {
        for (; started < all && m.clusters.size() < m.launch.resident; started++) start_cluster(started);
        if (m.ready) {
            run_thread(next_thread());
            if (m.launch.timing == ANY && !m.pending.empty() && !m.chance(16)) m.carry_out_one();
        } else if (!m.pending.empty()) {
            m.carry_out_one();
        } else {
            throw std::runtime_error("deadlock: no thread can run" + state_of_waiters());
        }
        const size_t before = m.clusters.size();
        for (const auto& cluster : m.clusters)
            if (!cluster->living) {
                end_clusters();
                break;
            }
        ended += unsigned(before - m.clusters.size());
    }
}

}  // namespace bs::emulator
