// Threads of our own, for where torch has none that can be shared.
#pragma once
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "runtime/job.h"

namespace blockscale {

inline void pause_briefly() {
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

// The thread that calls `run` is number 0, workers have the numbers from 1 on.
class Pool {
 public:
  // How many threads a job can have, the caller's among them. Where the system gives no more, those there are do all
  // the work.
  int grow(int threads) {
    while (started_ < threads - 1 && start_worker()) ++started_;
    return started_ < threads - 1 ? started_ + 1 : threads;
  }

  // When a worker has seen the job, the caller stays until no worker is in it.
  void run(Job& job, int threads) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      wanted_ = threads - 1;
      ++generation_;
      if (sleeping_ > 0) wake_.notify_all();
    }
    job.take_items(0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wanted_ = 0;  // whoever has not started need not
    }
    wait_for_workers();
  }

 private:
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
      Job* job = job_;
      lock.unlock();
      job->take_items(own);
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  int started_ = 0;   // workers
  int numbered_ = 0;  // of them
  Job* job_ = nullptr;
  std::atomic<uint64_t> generation_{0};  // of jobs
  std::atomic<int> running_{0};
  int wanted_ = 0;  // workers up to this number may join
  int sleeping_ = 0;
};

}  // namespace blockscale
