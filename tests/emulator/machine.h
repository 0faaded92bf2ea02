// The machine that a launch runs on: threads, CTAs and clusters, who waits for what, and what is under way.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "base.cuh"
#include "clocks.h"
#include "fibers.h"

namespace bs::emulator {

struct Cta;
struct Cluster;
struct Machine;
struct SharedMemory;
struct Warp;
struct Warpgroup;
struct CopyGroups;
struct Tmem;
struct Tcgen05Queue;
struct TmemAccesses;

// When asynchronous copies and products are carried out: as they are issued, as late as what waits for them allows, or
// whenever the seed says.
enum Timing { EARLIEST, LATEST, ANY };

inline std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
inline std::string format(const char* text, ...) {
    char line[1024];
    va_list values;
    va_start(values, text);
    std::vsnprintf(line, sizeof line, text, values);
    va_end(values);
    return line;
}

struct Thread {
    Fiber fiber;
    Clock clock;
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    unsigned index = 0;  // in the CTA
    bool done = false;
    std::function<std::string()> waits_for;  // what, while it does
    std::shared_ptr<CopyGroups> copies;
    std::shared_ptr<Tcgen05Queue> tcgen05;
    KnownRef tmem_view = std::make_shared<Known>();  // what it knew at the last tcgen05.fence::after_thread_sync

    int lane() const { return int(index % 32); }
    std::string name() const;
};

// Threads that wait for one event.
struct Waiters {
    std::vector<Thread*> threads;
};

// Where some threads meet: the last one acts for all, and each finds the result in its own part.
struct Meeting {
    std::vector<std::pair<Thread*, void*>> parts;
    const char* name = nullptr;
    std::function<size_t()> needed;  // threads; fewer when some have ended
    std::function<void()> finish;
    Waiters waiters;

    void finish_if_all_came() {
        if (!parts.empty() && parts.size() >= needed()) finish();
    }
};

struct Warp {
    Cta* cta = nullptr;
    unsigned index = 0;
    std::vector<Thread*> ready;
    unsigned priority = 0;
    uint32_t living = 0;                         // a bit for each lane that has not ended
    std::map<uint32_t, Meeting> meetings;        // by the lanes that take part
    int registers = 0;                           // of a thread
    std::shared_ptr<TmemAccesses> tmem_loads, tmem_stores;
    Warpgroup* group = nullptr;
};

struct Cta {
    HostIndex index;
    Cluster* cluster = nullptr;
    int rank = 0;
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<std::unique_ptr<Warpgroup>> warpgroups;
    std::shared_ptr<SharedMemory> shared;
    std::shared_ptr<Tmem> tmem;
    Waiters for_tmem;
    std::map<int, Meeting> barriers;
    unsigned living = 0;
    int free_registers = 0;
    Waiters for_registers;
    std::map<uint32_t, uint32_t> touched;  // by threads of other CTAs, since the cluster met: their agents and clocks
    Gathering at_end;                      // what its threads knew when they ended

    std::string name() const { return format("CTA (%u, %u, %u)", index.x, index.y, index.z); }
};

struct Cluster {
    std::vector<std::unique_ptr<Cta>> ctas;
    Meeting barrier;
    std::map<unsigned, Meeting> pair_meetings;  // by warp and pair
    unsigned living = 0;  // threads
};

inline std::string Thread::name() const { return format("thread %u of %s", index, cta->name().c_str()); }

// The kernel as the host compiler made it: its function, and the memory of its __shared__ variables.
struct Kernel {
    void (*run)(const void* arguments);
    u8 *begin, *end;
};

struct Launch {
    HostIndex grid;
    unsigned threads, cluster;  // CTAs of a cluster lie along y
    unsigned shared;            // bytes, dynamic
    unsigned resident;          // clusters at a time
    unsigned seed;
    Timing timing;
};

// A copy that nobody has been made to wait for yet.
struct Pending {
    std::function<void()> carry_out;
    std::string name;
    std::vector<Cta*> targets;  // whose shared memory it reads or writes
};

struct Counts {
    long dsmem_loads, switches, async_copies;
};

struct Agent {
    std::string name;
    bool is_async_proxy;
    const Warp* warp = nullptr;  // of a thread
};

struct Machine {
    Kernel kernel;
    Launch launch;
    const void* arguments = nullptr;
    std::mt19937 random;
    Thread* current = nullptr;
    Cta* placed = nullptr;  // whose __shared__ variables the kernel's memory holds
    std::string failure;
    bool has_failed = false;
    std::vector<std::unique_ptr<Cluster>> clusters;
    std::vector<Warp*> warps;
    size_t ready = 0;  // threads
    std::vector<Pending> pending;
    std::vector<Agent> agents{Agent{"nobody", false}};
    std::map<const void*, Waiters> flag_waiters;
    std::map<const void*, Gathering> flag_knowledge;
    std::unordered_map<uintptr_t, Stamp> global_writes;  // by address, of two bytes
    Counts counts{};

    Machine(const Kernel& kernel, const Launch& launch, const void* arguments)
        : kernel(kernel), launch(launch), arguments(arguments), random(launch.seed) {}

    unsigned chance(unsigned of) { return std::uniform_int_distribution<unsigned>(0, of - 1)(random); }
    uint32_t add_agent(std::string name, bool is_async_proxy) {
        agents.push_back({std::move(name), is_async_proxy});
        return uint32_t(agents.size() - 1);
    }


    void make_ready(Thread* thread) {
        thread->warp->ready.push_back(thread);
        ready++;
    }
    void wait(Waiters& waiters, std::function<std::string()> waits_for) {
        Thread* self = current;
        waiters.threads.push_back(self);
        self->waits_for = std::move(waits_for);
        self->fiber.leave();
        self->waits_for = nullptr;
    }
    void wake(Waiters& waiters) {
        for (Thread* each : waiters.threads) make_ready(each);
        waiters.threads.clear();
    }
    // Another thread may come first here.
    void maybe_switch() {
        if (!launch.seed || chance(8)) return;
        make_ready(current);
        current->fiber.leave();
    }

    bool is_early() { return launch.timing == EARLIEST || (launch.timing == ANY && chance(2)); }
    void issue(std::string name, std::vector<Cta*> targets, std::function<void()> carry_out) {
        counts.async_copies++;
        if (is_early())
            carry_out();
        else
            pending.push_back({std::move(carry_out), std::move(name), std::move(targets)});
    }
    void carry_out_one() {
        const size_t which = launch.seed ? chance(unsigned(pending.size())) : 0;
        const Pending one = std::move(pending[which]);
        pending.erase(pending.begin() + long(which));
        one.carry_out();
    }
};

inline Machine* machine = nullptr;  // of the launch under way

// Ends the launch. A thread that fails never runs again; elsewhere the launch's own function catches this.
[[noreturn]] inline void fail(const std::string& what) {
    if (!machine || !machine->current) throw std::runtime_error(what);
    if (!machine->has_failed) machine->failure = machine->current->name() + ": " + what;
    machine->has_failed = true;
    machine->current->fiber.leave();
    __builtin_unreachable();
}

// What is wrong is put into words only where it is.
#define BS_REQUIRE(SO, ...) \
    do \
        if (!(SO)) ::bs::emulator::fail(::bs::emulator::format(__VA_ARGS__)); \
    while (0)

// `needed()` threads meet at `meeting`. Each gives its part; when all have come, `act` gets all parts. What each did
// before is known to all after, unless `orders` is false.
template <class Part, class Act>
void meet(Meeting& meeting, const char* name, std::function<size_t()> needed, Part& part, const Act& act,
          bool orders = true) {
    Machine& m = *machine;
    if (meeting.parts.empty()) {
        meeting.name = name;
        meeting.needed = std::move(needed);
        meeting.finish = [&meeting, &act, &m, orders] {
            std::vector<Part*> parts;
            for (auto& [thread, given] : meeting.parts) parts.push_back(static_cast<Part*>(given));
            act(parts);
            Gathering gathered;
            for (auto& [thread, given] : meeting.parts) gathered.add(thread->clock);
            if (orders)
                for (auto& [thread, given] : meeting.parts) thread->clock.base = gathered.known();
            meeting.parts.clear();
            m.wake(meeting.waiters);
        };
    }
    BS_REQUIRE(std::strcmp(meeting.name, name) == 0, "%s, where others of the warp or barrier are at %s", name,
               meeting.name);
    meeting.parts.emplace_back(m.current, &part);
    if (meeting.parts.size() >= meeting.needed())
        meeting.finish();
    else
        m.wait(meeting.waiters, [&meeting, name] {
            return format("%s, where %zu of %zu threads are", name, meeting.parts.size(), meeting.needed());
        });
}

struct Nothing {};

// Lanes of a warp meet. Where they must execute the same instruction, only those that have not ended count.
template <class Part, class Act>
void meet_warp(const char* name, Part& part, const Act& act, uint32_t mask = ~0u) {
    Thread& self = *machine->current;
    Warp& warp = *self.warp;
    BS_REQUIRE(mask >> self.lane() & 1, "%s: lane %d is not in the mask %08x", name, self.lane(), mask);
    meet(
        warp.meetings[mask], name, [&warp, mask] { return size_t(__builtin_popcount(mask & warp.living)); }, part, act);
}

}  // namespace bs::emulator
