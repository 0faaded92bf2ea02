#include "threads.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace blockscale {
namespace {

// Rounding to nearest and subnormals as they are, whatever the thread is set to, for a scope.
class StandardFloats {
 public:
  StandardFloats() : before_(read()) { write(standard()); }
  ~StandardFloats() { write(before_); }

 private:
#if defined(__x86_64__)
  using State = unsigned;
  static State standard() { return 0x1f80; }
  static State read() { return _mm_getcsr(); }
  static void write(State state) { _mm_setcsr(state); }
#elif defined(__aarch64__)
  using State = uint64_t;
  static State standard() { return 0; }
  static State read() {
    State state;
    asm volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void write(State state) { asm volatile("msr fpcr, %0" ::"r"(state)); }
#else
  using State = int;
  static State standard() { return 0; }
  static State read() { return 0; }
  static void write(State) {}
#endif
  State before_;
};

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// True once ready() is, within a millisecond: what a model does between two products takes less, and waking a
// sleeping thread takes long. After the first moments the core is left to whoever else wants it.
template <class Ready>
bool spin_until(Ready ready) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
    const auto passed = Clock::now() - begin;
    if (passed > std::chrono::milliseconds(1)) return false;
    if (passed > std::chrono::microseconds(50)) std::this_thread::yield();
  }
}

// The items of a job, in as many runs as there are threads. A run's items are neighbours, and so as a rule
// is what they read: a thread that takes one after the other reads on where the prefetcher is ahead of it.
class Runs {
 public:
  // No thread may be taking items meanwhile.
  void deal(int64_t items, int runs) {
    if (size_t(runs) > runs_.size()) runs_ = std::vector<Run>(size_t(runs));
    count_ = runs;
    for (int r = 0; r < runs; ++r) {
      runs_[size_t(r)].next.store(items * r / runs, std::memory_order_relaxed);
      runs_[size_t(r)].end = items * (r + 1) / runs;
    }
  }

  // All of a thread's own run, then what others have left of theirs.
  void take(int own, const std::function<void(int64_t)>& work) {
    for (int r = 0; r < count_; ++r) {
      Run& run = runs_[size_t((own + r) % count_)];
      // Looking costs less than taking, when all threads look whether anything is left.
      while (run.next.load(std::memory_order_relaxed) < run.end) {
        const int64_t i = run.next++;
        if (i < run.end) work(i);
      }
    }
  }

 private:
  struct alignas(64) Run {  // a cache line each
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Run> runs_;
  int count_ = 0;
};

class Pool {
 public:
  // One job: every thread takes items until there are none.
  void run(int64_t items, int threads, const std::function<void(int64_t)>& work) {
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      runs_.deal(items, threads);
      wanted_ = threads - 1;
      ++generation_;
      if (sleeping_ > 0) wake_.notify_all();
    }
    take_items(work, 0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wanted_ = 0;  // whoever has not started need not
    }
    if (spin_until([this] { return running_ == 0; })) return;
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  // Where the system gives no more threads, those there are do all the work.
  void grow(int workers) {
    try {
      for (; workers_ < workers; ++workers_)
        std::thread([this] { serve(); }).detach();  // they sleep until the process ends
    } catch (const std::system_error&) {
    }
  }

  void take_items(const std::function<void(int64_t)>& work, int own) {
    const StandardFloats standard;
    runs_.take(own, work);
  }

  void serve() {
    uint64_t seen = 0;
    for (;;) {
      spin_until([&] { return generation_ != seen; });
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return generation_ != seen; });
      --sleeping_;
      seen = generation_;
      if (wanted_ == 0) continue;
      const int own = wanted_--;
      ++running_;
      const auto* work = work_;
      lock.unlock();
      take_items(*work, own);
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  int workers_ = 0;
  const std::function<void(int64_t)>* work_ = nullptr;
  Runs runs_;
  std::atomic<uint64_t> generation_{0};  // of jobs
  std::atomic<int> running_{0};
  int wanted_ = 0, sleeping_ = 0;
};

// The pool and the lock that guards its use. A child of fork has neither threads nor, perhaps, an
// open lock: it starts with new ones, and the old ones are left where they are.
std::mutex* use = new std::mutex;
Pool* pool = new Pool;

void renew_after_fork() {
  use = new std::mutex;
  pool = new Pool;
}

const int registered = pthread_atfork(nullptr, nullptr, renew_after_fork);

}  // namespace

void parallel_for(int64_t items, int threads, const std::function<void(int64_t)>& work) {
  (void)registered;
  if (threads > items) threads = int(items);
  if (threads > 1) {
    std::unique_lock<std::mutex> lock(*use, std::try_to_lock);
    if (lock.owns_lock()) {
      pool->run(items, threads, work);
      return;
    }
  }
  const StandardFloats standard;
  for (int64_t i = 0; i < items; ++i) work(i);
}

}  // namespace blockscale
