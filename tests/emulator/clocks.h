// Vector clocks: what a thread knows to have happened before.
//
// Every thread is an agent, and so is whatever copies or multiplies on its own: an mbarrier's bulk copies, a
// warpgroup's products, a thread's cp.async. An access is stamped with its agent and the agent's clock. A thread that
// waits for another one learns what that one knew; an access that touches what another agent wrote, and does not know of
// it, is a race.
//
// `proxied` is what the async proxy (bulk copies, wgmma, tcgen05) may see of accesses through the generic proxy: all that
// was known at the last fence.proxy.async on the way.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace bs::emulator {

using std::uint32_t;

struct Stamp {
    uint32_t agent = 0;  // 0: nobody
    uint32_t clock = 0;
};

struct Known {
    std::vector<uint32_t> seen, proxied;  // by agent; what is missing is 0

    static uint32_t at(const std::vector<uint32_t>& clocks, uint32_t agent) {
        return agent < clocks.size() ? clocks[agent] : 0;
    }
    static void raise(std::vector<uint32_t>& clocks, uint32_t agent, uint32_t clock) {
        if (agent >= clocks.size()) clocks.resize(agent + 1);
        clocks[agent] = std::max(clocks[agent], clock);
    }
    static void raise(std::vector<uint32_t>& clocks, const std::vector<uint32_t>& other) {
        if (other.size() > clocks.size()) clocks.resize(other.size());
        for (size_t i = 0; i < other.size(); i++) clocks[i] = std::max(clocks[i], other[i]);
    }
    void join(const Known& other) {
        raise(seen, other.seen);
        raise(proxied, other.proxied);
    }
};

using KnownRef = std::shared_ptr<const Known>;

// What one thread knows. Lanes that have met share `base`; a thread's own clocks stand beside it, so that counting them
// up copies nothing.
struct Clock {
    KnownRef base = std::make_shared<Known>();
    uint32_t agent = 0, own = 1;           // of this thread's own accesses: the epoch that is under way
    uint32_t copies = 0, copies_done = 0;  // the agent of its cp.async, and the last group that has been waited for

    uint32_t seen(uint32_t other) const {
        return other == agent ? own : other == copies ? copies_done : Known::at(base->seen, other);
    }
    uint32_t proxied(uint32_t other) const { return Known::at(base->proxied, other); }

    // With its own clocks.
    void add_to(Known& known) const {
        Known::raise(known.seen, agent, own);
        Known::raise(known.seen, copies, copies_done);
    }
    Known all() const {
        Known known = *base;
        add_to(known);
        return known;
    }
    void learn(const Known& other) {
        auto joined = std::make_shared<Known>(*base);
        joined->join(other);
        base = joined;
    }
    void learn(uint32_t other, uint32_t clock) {
        if (Known::at(base->seen, other) >= clock) return;
        auto joined = std::make_shared<Known>(*base);
        Known::raise(joined->seen, other, clock);
        base = joined;
    }
    // fence.proxy.async
    void fence_proxies() {
        auto fenced = std::make_shared<Known>(all());
        Known::raise(fenced->proxied, fenced->seen);
        base = fenced;
        own++;
    }
};

// What is passed on where threads meet or arrive: threads with the same base are joined once.
class Gathering {
   public:
    void add(Clock& clock) {
        if (std::find(bases_.begin(), bases_.end(), clock.base) == bases_.end()) {
            bases_.push_back(clock.base);
            known_->join(*clock.base);
        }
        clock.add_to(*known_);
        clock.own++;  // what follows has not been passed on
    }
    void add(uint32_t agent, uint32_t clock) { Known::raise(known_->seen, agent, clock); }
    KnownRef known() const { return known_; }

   private:
    std::shared_ptr<Known> known_ = std::make_shared<Known>();
    std::vector<KnownRef> bases_;
};

// What waiters learn of one event: those with the same base share the result.
class Lesson {
   public:
    Lesson() = default;
    explicit Lesson(KnownRef known) : known_(std::move(known)) {}

    void teach(Clock& clock) {
        if (!known_) return;
        for (const auto& [before, after] : taught_)
            if (before == clock.base) {
                clock.base = after;
                return;
            }
        const KnownRef before = clock.base;
        clock.learn(*known_);
        taught_.emplace_back(before, clock.base);
    }

   private:
    KnownRef known_;
    std::vector<std::pair<KnownRef, KnownRef>> taught_;
};

}  // namespace bs::emulator
