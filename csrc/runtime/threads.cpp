#include "runtime/threads.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "runtime/memory.h"

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

// The thread that calls `run` is number 0, workers have the numbers from 1 on.
class Pool {
 public:
  // One job: every thread takes items until there are none. What needs memory comes first: when a worker has
  // seen the job, the caller stays until no worker is in it.
  void run(int64_t items, int threads, int64_t bytes, const ItemWork& work) {
    const int workers = grow(threads - 1);
    runs_.deal(items, workers + 1);
    while (scratch_.size() <= size_t(workers)) scratch_.emplace_back();
    for (int i = 0; i <= workers; ++i) scratch_[size_t(i)].hold(bytes);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      wanted_ = workers;
      ++generation_;
      if (sleeping_ > 0) wake_.notify_all();
    }
    take_items(work, 0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wanted_ = 0;  // whoever has not started need not
    }
    wait_for_workers();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  // How many of `workers` there are. Where the system gives no more threads, those there are do all the work.
  int grow(int workers) {
    while (started_ < workers && start_worker()) ++started_;
    return started_ < workers ? started_ : workers;
  }

  // A worker sleeps until the process ends. std::thread would allocate, and throw.
  bool start_worker() {
    pthread_t thread;
    const auto serve = [](void* pool) -> void* {
      static_cast<Pool*>(pool)->serve();
      return nullptr;
    };
    return pthread_create(&thread, nullptr, serve, this) == 0 && pthread_detach(thread) == 0;
  }

  void wait_for_workers() {
    if (spin_until([this] { return running_ == 0; })) return;
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
  }

  void take_items(const ItemWork& work, int own) {
    const StandardFloats standard;
    uint8_t* memory = scratch_[size_t(own)].get();
    runs_.take(own, [&](int64_t item) {
      try {
        work(item, memory);
      } catch (...) {  // whatever it is, the caller gets it
        fail(std::current_exception());
      }
    });
  }

  void fail(std::exception_ptr failure) {
    runs_.end();
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

  void serve() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    const int own = ++numbered_;
    for (;;) {
      lock.unlock();
      spin_until([&] { return generation_ != seen; });
      lock.lock();
      ++sleeping_;
      wake_.wait(lock, [&] { return generation_ != seen; });
      --sleeping_;
      seen = generation_;
      if (own > wanted_) continue;
      ++running_;
      const ItemWork* work = work_;
      lock.unlock();
      take_items(*work, own);
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  int started_ = 0;   // workers
  int numbered_ = 0;  // of them
  const ItemWork* work_ = nullptr;
  std::exception_ptr failure_;  // of the first item that threw
  Runs runs_;
  Vector<Scratch> scratch_;              // of thread number i
  std::atomic<uint64_t> generation_{0};  // of jobs
  std::atomic<int> running_{0};
  int wanted_ = 0;  // workers up to this number may join
  int sleeping_ = 0;
};

// One pool, which is never destroyed: its workers end with the process. In static memory, since neither loading the
// library nor fork can say that there is none.
alignas(Pool) unsigned char pool_memory[sizeof(Pool)];
Pool* pool = new (pool_memory) Pool;
std::atomic_flag pool_is_used = ATOMIC_FLAG_INIT;

// A child of fork has no workers and, perhaps, a closed lock: it starts with a new pool, and what the old one
// held is left where it is.
void renew_after_fork() {
  pool = new (pool_memory) Pool;
  pool_is_used.clear();
}

// Where this cannot be registered, a child could wait for workers that it does not have: there are none then.
const bool survives_fork = pthread_atfork(nullptr, nullptr, renew_after_fork) == 0;

// For a scope, unless somebody else has it: another thread, or this one further up.
class UseOfPool {
 public:
  UseOfPool() : mine(!pool_is_used.test_and_set(std::memory_order_acquire)) {}
  ~UseOfPool() {
    if (mine) pool_is_used.clear(std::memory_order_release);
  }
  UseOfPool(const UseOfPool&) = delete;
  UseOfPool& operator=(const UseOfPool&) = delete;

  const bool mine;
};

}  // namespace

void run_items(int64_t items, int threads, int64_t bytes, const ItemWork& work) {
  if (threads > items) threads = int(items);
  if (threads > 1 && survives_fork) {
    const UseOfPool use;
    if (use.mine) return pool->run(items, threads, bytes, work);
  }
  Scratch memory;
  memory.hold(bytes);
  const StandardFloats standard;
  for (int64_t i = 0; i < items; ++i) work(i, memory.get());
}

}  // namespace blockscale
