#include "runtime/threads.h"

#include <pthread.h>

#include <atomic>
#include <new>

#include "runtime/job.h"
#include "runtime/openmp.h"
#include "runtime/pool.h"

namespace blockscale {
namespace {

// What is shared by all calls, one of which has it at a time.
struct Team {
  Pool pool;
  OpenMp openmp;
  Job job;

  void run(int64_t items, int threads, int64_t bytes, const ItemWork& work) {
    const bool shared = openmp.takes(threads);
    if (!shared) threads = pool.grow(threads > items ? int(items) : threads);
    job.begin(items, threads, bytes, work);
    if (shared) openmp.run(job, threads);
    else pool.run(job, threads);
    job.end();
  }
};

// Never destroyed: its workers end with the process. In static memory, since neither loading the library nor fork can
// say that there is none.
alignas(Team) unsigned char team_memory[sizeof(Team)];
Team* team = new (team_memory) Team;
std::atomic_flag team_is_used = ATOMIC_FLAG_INIT;

// What the thread that forks leaves to its child.
OpenMp shared_with_child;

[[maybe_unused]] void let_go_before_fork() {
  const OpenMp none;
  shared_with_child = team->openmp.let_go() ? team->openmp : none;
}

// A child of fork has no workers and, perhaps, a closed lock: it starts with a new pool, and what the old one held is
// left where it is.
[[maybe_unused]] void renew_after_fork() {
  team = new (team_memory) Team;
  team->openmp = shared_with_child;
  team_is_used.clear();
}

// Where this cannot be registered, a child could wait for workers that it does not have: there are none then.
#if defined(_WIN32)
const bool survives_fork = true;  // there is none
#else
const bool survives_fork = pthread_atfork(let_go_before_fork, nullptr, renew_after_fork) == 0;
#endif

// For a scope, unless somebody else has it: another thread, or this one further up.
class UseOfTeam {
 public:
  UseOfTeam() : mine(!team_is_used.test_and_set(std::memory_order_acquire)) {}
  ~UseOfTeam() {
    if (mine) team_is_used.clear(std::memory_order_release);
  }
  UseOfTeam(const UseOfTeam&) = delete;
  UseOfTeam& operator=(const UseOfTeam&) = delete;

  const bool mine;
};

}  // namespace

void run_items(int64_t items, int threads, int64_t bytes, const ItemWork& work) {
  if (threads > 1 && items > 1 && survives_fork) {
    const UseOfTeam use;
    if (use.mine) return team->run(items, threads, bytes, work);
  }
  Scratch memory;
  memory.hold(bytes);
  const StandardFloats standard;
  for (int64_t i = 0; i < items; ++i) work(i, memory.get());
}

bool share_openmp(const OpenMp& openmp) {
  const UseOfTeam use;
  if (use.mine) team->openmp = openmp;
  return use.mine;
}

}  // namespace blockscale
