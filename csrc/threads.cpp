#include "threads.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

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

class Pool {
 public:
  // One job: workers take items until there are none.
  void run(int64_t items, int threads, const std::function<void(int64_t)>& work) {
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      items_ = items;
      next_.store(0, std::memory_order_relaxed);
      wanted_ = threads - 1;
      ++generation_;
      if (sleeping_ > 0) wake_.notify_all();
    }
    take_items(work, items);
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

  void take_items(const std::function<void(int64_t)>& work, int64_t items) {
    const StandardFloats standard;
    for (int64_t i = next_++; i < items; i = next_++) work(i);
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
      --wanted_;
      ++running_;
      const auto* work = work_;
      const int64_t items = items_;
      lock.unlock();
      take_items(*work, items);
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  int workers_ = 0;
  const std::function<void(int64_t)>* work_ = nullptr;
  int64_t items_ = 0;
  std::atomic<int64_t> next_{0};
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
