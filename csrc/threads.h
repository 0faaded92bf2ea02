// A pool of threads that any number of Python threads may use at once, before and after fork.
#pragma once
#include <cstdint>
#include <functional>

namespace blockscale {

// Calls work(i) once for each i in [0, items), on up to `threads` threads, the caller's among them.
// Which thread does which item is left open: items must be independent. If another call has the
// pool, this one runs on its own thread alone.
void parallel_for(int64_t items, int threads, const std::function<void(int64_t)>& work);

}  // namespace blockscale
