// Threads for the items of a call, which any number of Python threads may ask for at once, before and after fork.
#pragma once
#include <cstdint>

namespace blockscale {

struct OpenMp;

// A reference to work(item, memory), which outlives it. Unlike std::function it never allocates.
class ItemWork {
 public:
  template <class Work>
  explicit ItemWork(Work& work)
      : work_(&work), call_([](void* work, int64_t item, uint8_t* memory) {
          (*static_cast<Work*>(work))(item, memory);
        }) {}

  void operator()(int64_t item, uint8_t* memory) const { call_(work_, item, memory); }

 private:
  void* work_;
  void (*call_)(void* work, int64_t item, uint8_t* memory);
};

// Calls work(i, memory) once for each i in [0, items), on up to `threads` threads, the caller's among
// them; `memory` has `bytes` and is a thread's own. Which thread does which item is left open: items must be
// independent. The threads are OpenMP's where they are shared (openmp.h), else a pool's. If another call has them, this
// one runs on its own thread alone.
//
// Throws OutOfMemory before any item has started, or the first exception of an item: then items that nobody has
// started are left out, and no thread works on one any more.
void run_items(int64_t items, int threads, int64_t bytes, const ItemWork& work);

// From now on jobs with as many threads as OpenMP's own run on these, in children of fork as well.
// False where a call is under way, and nothing changes.
bool share_openmp(const OpenMp& openmp);

template <class Work>
void parallel_for(int64_t items, int threads, int64_t bytes, Work work) {
  run_items(items, threads, bytes, ItemWork(work));
}

// The same for work(i), which needs no memory.
template <class Work>
void parallel_for(int64_t items, int threads, Work work) {
  parallel_for(items, threads, 0, [&](int64_t item, uint8_t*) { work(item); });
}

}  // namespace blockscale
