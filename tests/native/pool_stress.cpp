// The pool of threads under everything that may happen to it at once, for the sanitizers to watch:
//
//     pool_stress [openmp] CASE...
//
// One case after the other; with `openmp`, on the threads of the OpenMP runtime that it is linked to. Returns 0 where
// every item was done as often as it should be; else says what was not.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>

#include "runtime/openmp.h"
extern "C" void GOMP_parallel(void (*region)(void*), void* data, unsigned threads, unsigned flags);
#endif

#include "runtime/memory.h"
#include "runtime/threads.h"

using namespace blockscale;

namespace {

constexpr int CALLERS = 4, THREADS = 4, ROUNDS = 60;
constexpr int64_t ITEMS = 97, BYTES = 4096;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  _exit(1);
}

template <class Work>
void from_many_threads(Work work) {
  std::vector<std::thread> callers;
  for (int i = 0; i < CALLERS; ++i) callers.emplace_back([=] { work(i); });
  for (std::thread& caller : callers) caller.join();
}

// Plain memory of the caller's stack, which a worker that is late would write to after the call.
struct Tally {
  int64_t times[ITEMS] = {};

  void check(int64_t expected) const {
    for (const int64_t each : times) expect(each == expected, "every item is done once");
  }
};

void one_job(int threads) {
  Tally tally;
  parallel_for(ITEMS, threads, BYTES, [&](int64_t i, uint8_t* memory) {
    if (i == ITEMS - 1) std::this_thread::sleep_for(std::chrono::microseconds(200));  // the caller must wait
    std::memset(memory, int(i), BYTES);  // nobody else's
    tally.times[i] += memory[BYTES - 1] == uint8_t(i);
  });
  tally.check(1);
}

void callers() {
  from_many_threads([](int caller) {
    for (int round = 0; round < ROUNDS; ++round) one_job(2 + (caller + round) % THREADS);
  });
}

// An item that uses the pool does so alone.
void nested() {
  from_many_threads([](int) {
    for (int round = 0; round < ROUNDS / 10; ++round) {
      Tally tally;
      parallel_for(ITEMS, THREADS, [&](int64_t i) {
        one_job(THREADS);
        ++tally.times[i];
      });
      tally.check(1);
    }
  });
}

// The caller gets what an item throws, once no thread works on its items any more.
void failing() {
  from_many_threads([](int caller) {
    for (int round = 0; round < ROUNDS; ++round) {
      Tally tally;
      std::atomic<int> inside{0};
      const int64_t bad = (caller * 31 + round * 7) % ITEMS, every = round % 3 ? ITEMS : 2;
      bool thrown = false;
      try {
        parallel_for(ITEMS, THREADS, [&](int64_t i) {
          ++inside;
          ++tally.times[i];
          if (i % 8 == 1) std::this_thread::sleep_for(std::chrono::microseconds(50));
          --inside;
          if (i % every == bad % every) throw std::runtime_error("an item");
        });
      } catch (const std::runtime_error& error) {
        thrown = !std::strcmp(error.what(), "an item");
      }
      expect(thrown, "what an item throws comes out");
      expect(inside == 0, "no item is worked on after the call");
      for (const int64_t each : tally.times) expect(each <= 1, "no item is done twice");
      one_job(THREADS);
    }
  });
}

// Memory that cannot be had is an exception before any item starts.
void refused() {
  from_many_threads([](int) {
    for (int round = 0; round < ROUNDS; ++round) {
      const int64_t bytes = int64_t(1) << 60;
      int64_t asked = 0;
      try {
        parallel_for(ITEMS, THREADS, bytes, [](int64_t, uint8_t*) { expect(false, "no item starts"); });
      } catch (const OutOfMemory& error) {
        asked = error.bytes;
      }
      expect(asked == bytes, "the exception says how much was asked for");
      one_job(THREADS);
    }
  });
}

// Returns once all workers have been in one job.
void start_workers() {
  std::atomic<int> inside{0};
  parallel_for(THREADS, THREADS, [&](int64_t) {
    ++inside;
    while (inside < THREADS) std::this_thread::yield();
  });
}

void job_without_memory() {
  Tally tally;
  parallel_for(ITEMS, THREADS, [&](int64_t i) { ++tally.times[i]; });
  tally.check(1);
}

// A thread that does the same work over and over, for a scope.
class Busy {
 public:
  explicit Busy(void (*work)()) : thread_([this, work] { repeat(work); }) {}
  ~Busy() {
    done_ = true;
    thread_.join();
  }
  void wait_until_begun() const {
    while (!begun_) std::this_thread::yield();
  }

 private:
  void repeat(void (*work)()) {
    for (; !done_; begun_ = true) work();
  }

  std::atomic<bool> begun_{false}, done_{false};
  std::thread thread_;
};

#ifdef _OPENMP
// Every thread of the caller's team, as OpenMP counts them, is in the job: in no other are they numbered.
void shares_one_team() {
  std::atomic<int> inside{0};
  bool numbered[THREADS] = {};
  parallel_for(THREADS, THREADS, [&](int64_t) {
    ++inside;
    while (inside < THREADS) std::this_thread::yield();
    numbered[omp_get_thread_num()] = true;
  });
  for (const bool each : numbered) expect(each, "every thread of the team works");
}

// What the child of a process with a team does beside this library hangs if it was left the threads of its parent.
void other_regions_work() {
  std::atomic<int> inside{0};
#pragma omp parallel num_threads(THREADS)
  ++inside;
  expect(inside == THREADS, "OpenMP works beside this library");
}

// As if torch had so many threads, on as many processors.
void share() {
  omp_set_num_threads(THREADS);
  const OpenMp openmp{GOMP_parallel, omp_get_thread_num, omp_get_max_threads, [] { return THREADS; }, omp_in_parallel,
                      [](int kind) { return omp_pause_resource_all(omp_pause_resource_t(kind)); }};
  expect(share_openmp(openmp), "the team can be had before any call");
  shares_one_team();
}
#else
void other_regions_work() {}
void share() { expect(false, "this program was built with OpenMP"); }
#endif

// Children have a pool of their own, whatever the parent's was doing.
void fork_children() {
  for (int round = 0; round < 6; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(600);  // rather than hang: the work takes milliseconds
      one_job(THREADS);
      other_regions_work();
      one_job(THREADS);
      _exit(0);
    }
    int status = 1;
    expect(waitpid(child, &status, 0) == child, "a child of fork is waited for");
    if (WIFSIGNALED(status)) std::fprintf(stderr, "signal %d ended a child\n", WTERMSIG(status));
    expect(status == 0, "a child of fork computes");
    one_job(THREADS);
  }
}

// At any moment: the C library keeps its allocator usable in children, whoever was allocating.
void forks() {
  const Busy busy([] { one_job(THREADS); });
  fork_children();
}

// A sanitizer's allocator stays locked in a child if another thread had locked it, to allocate, to free or to start:
// here all threads have started, and none but the one that forks needs memory.
void forks_without_allocating() {
  one_job(THREADS);  // the pool's memory
  start_workers();
  const Busy busy(job_without_memory);
  busy.wait_until_begun();
  fork_children();
}

struct Case {
  const char* name;
  void (*run)();
};
const Case CASES[] = {
    {"callers", callers}, {"nested", nested}, {"failing", failing},
    {"refused", refused}, {"forks", forks},   {"forks_without_allocating", forks_without_allocating},
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 2)
    for (const Case& each : CASES) std::puts(each.name);
  for (int i = 1; i < count; ++i) {
    if (!std::strcmp(arguments[i], "openmp")) {
      share();
      continue;
    }
    const auto asked = [&](const Case& each) { return !std::strcmp(each.name, arguments[i]); };
    const Case* const found = std::find_if(std::begin(CASES), std::end(CASES), asked);
    if (found == std::end(CASES)) return 2;
    found->run();
  }
  return 0;
}
