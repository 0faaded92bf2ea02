// One call's items, and what its threads need to work on them. Who the threads are is left to teams: a pool of
// our own (pool.h) or OpenMP's (openmp.h).
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

#include "runtime/memory.h"
#include "runtime/standard_floats.h"
#include "runtime/threads.h"

namespace blockscale {

// The items of a job, in as many runs as there are threads. A run's items are neighbours, and so as a rule
// is what they read: a thread that takes one after the other reads on where the prefetcher is ahead of it.
class Runs {
 public:
  // No thread may be taking items meanwhile.
  void deal(int64_t items, int runs) {
    if (size_t(runs) > runs_.size()) runs_ = Vector<Run>(size_t(runs));
    count_ = runs;
    for (int r = 0; r < runs; ++r) {
      runs_[size_t(r)].next.store(items * r / runs, std::memory_order_relaxed);
      runs_[size_t(r)].end = items * (r + 1) / runs;
    }
  }

  // All of a thread's own run, then what others have left of theirs.
  template <class Work>
  void take(int own, const Work& work) {
    for (int r = 0; r < count_; ++r) {
      Run& run = runs_[size_t((own + r) % count_)];
      // Looking costs less than taking, when all threads look whether anything is left.
      while (run.next.load(std::memory_order_relaxed) < run.end) {
        const int64_t i = run.next++;
        if (i < run.end) work(i);
      }
    }
  }

  // Nothing is left for any thread.
  void end() {
    for (int r = 0; r < count_; ++r) runs_[size_t(r)].next = runs_[size_t(r)].end;
  }

 private:
  struct alignas(CACHE_LINE) Run {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  Vector<Run> runs_;
  int count_ = 0;
};

// Kept from call to call, with the memory that its threads work in.
class Job {
 public:
  // All that needs memory comes first: once a thread has begun, nothing is refused.
  void begin(int64_t items, int threads, int64_t bytes, const ItemWork& work) {
    runs_.deal(items, threads);
    while (scratch_.size() < size_t(threads)) scratch_.emplace_back();
    for (int i = 0; i < threads; ++i) scratch_[size_t(i)].hold(bytes);
    work_ = &work;
  }

  // On thread number `own`, of which each has another; returns once no item is left to start.
  void take_items(int own) {
    const StandardFloats standard;
    uint8_t* memory = scratch_[size_t(own)].get();
    runs_.take(own, [&](int64_t item) {
      try {
        (*work_)(item, memory);
      } catch (...) {  // whatever it is, the caller gets it
        fail(std::current_exception());
      }
    });
  }

  // Once no thread works on it any more.
  void end() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void fail(std::exception_ptr failure) {
    runs_.end();
    std::lock_guard<std::mutex> lock(failing_);
    if (!failure_) failure_ = std::move(failure);
  }

  Runs runs_;
  Vector<Scratch> scratch_;  // of thread number i
  const ItemWork* work_ = nullptr;
  std::mutex failing_;
  std::exception_ptr failure_;  // of the first item that threw
};

}  // namespace blockscale
