// Loaded before all else (LD_PRELOAD): malloc and its relatives, of which the n-th from now on is refused, and
// all after it where that is wanted. Threads of every kind count.
#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

std::atomic<long> left{0};  // until one is refused; 0: none is
std::atomic<long> refusals{0};
std::atomic<bool> persistent{false};

bool is_refused() {
  long now = left.load();
  while (now > 1)
    if (left.compare_exchange_weak(now, now - 1)) return false;
  if (now == 0 || (!persistent && !left.compare_exchange_strong(now, 0))) return false;
  ++refusals;
  errno = ENOMEM;
  return true;
}

}  // namespace

extern "C" {

void refuse(long nth, int all_after_it) {
  persistent = all_after_it;
  refusals = 0;
  left = nth;
}

// How many were refused since; none is from here on.
long stop_refusing() {
  left = 0;
  return refusals;
}

void* malloc(size_t size) { return is_refused() ? nullptr : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return is_refused() ? nullptr : __libc_calloc(count, size); }
void* aligned_alloc(size_t alignment, size_t size) {
  return is_refused() ? nullptr : __libc_memalign(alignment, size);
}
}
