// The threads of an OpenMP runtime that the process has loaded already: torch's. Two teams on the same cores hold each
// other up, since the threads of each spin for a while after their work: a model whose products have a team of their
// own, between torch's other operations, becomes slower with more threads. In one team the same threads do both.
//
// Nothing is compiled with OpenMP or linked to it. What GCC compiles a parallel region to is called by address; the
// runtimes of LLVM and Intel have the same functions on Linux.
#pragma once
#include "runtime/job.h"

namespace blockscale {

struct OpenMp {
  void (*parallel)(void (*region)(void*), void* data, unsigned threads, unsigned flags) = nullptr;  // GOMP_parallel
  int (*thread_num)() = nullptr;   // omp_get_thread_num
  int (*max_threads)() = nullptr;  // omp_get_max_threads
  int (*num_procs)() = nullptr;    // omp_get_num_procs: those that this process may run on
  int (*in_parallel)() = nullptr;  // omp_in_parallel
  int (*pause)(int) = nullptr;     // omp_pause_resource_all

  // Whether a job with so many threads is for this team. Of another number than torch's the runtime would end threads
  // and start others, at every call. It ends the process where it gets no thread, so that it is not asked for more
  // than there are processors.
  bool takes(int threads) const {
    return parallel && threads == max_threads() && threads <= num_procs() && !in_parallel();
  }

  // Ends the calling thread's team, which its next region starts anew. A child of fork would wait for ever for the
  // threads that its parent had: torch's own operations would, too. False within a region.
  bool let_go() const {
    const int soft = 1;  // what the thread has set stays
    return parallel && pause(soft) == 0;
  }

  // The runtime may give fewer threads than asked for: items are taken, not assigned.
  void run(Job& job, int threads) const {
    struct Region {
      Job& job;
      const OpenMp& openmp;
    } region{job, *this};
    const auto enter = [](void* data) {
      const Region& entered = *static_cast<Region*>(data);
      entered.job.take_items(entered.openmp.thread_num());
    };
    parallel(enter, &region, unsigned(threads), 0);
  }
};

}  // namespace blockscale
