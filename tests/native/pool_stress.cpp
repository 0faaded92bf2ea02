// The pool of threads under everything that may happen to it at once, for the sanitizers to watch:
//
//     pool_stress CASE
//
// Returns 0 where every item was done as often as it should be; else says what was not.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

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

// Children have a pool of their own, whatever the parent's was doing.
void forks() {
  std::atomic<bool> done{false};
  std::thread busy([&] {
    while (!done) one_job(THREADS);
  });
  for (int round = 0; round < 6; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // rather than hang
      one_job(THREADS);
      one_job(THREADS);
      _exit(0);
    }
    int status = 1;
    expect(waitpid(child, &status, 0) == child && status == 0, "a child of fork computes");
    one_job(THREADS);
  }
  done = true;
  busy.join();
}

struct Case {
  const char* name;
  void (*run)();
};
const Case CASES[] = {
    {"callers", callers}, {"nested", nested}, {"failing", failing}, {"refused", refused}, {"forks", forks},
};

}  // namespace

int main(int count, char** arguments) {
  for (const Case& each : CASES) {
    if (count < 2)
      std::puts(each.name);
    else if (!std::strcmp(each.name, arguments[1]))
      return each.run(), 0;
  }
  return count < 2 ? 0 : 2;
}
