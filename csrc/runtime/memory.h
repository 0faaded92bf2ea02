// Every request of the native code for memory. One that is refused becomes an OutOfMemory that knows how much
// was asked for, which the exported functions return to Python.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#if defined(_WIN32)
#include <malloc.h>
#endif

namespace blockscale {

class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(int64_t bytes) : bytes(bytes) {}
  const int64_t bytes;
};

constexpr int64_t CACHE_LINE = 64;

// Aligned to a cache line, and never null.
inline void* allocate(int64_t bytes) {
  const int64_t lines = (bytes + CACHE_LINE - 1) / CACHE_LINE, asked = (lines ? lines : 1) * CACHE_LINE;
#if defined(_WIN32)
  void* memory = _aligned_malloc(size_t(asked), size_t(CACHE_LINE));
#else
  void* memory = std::aligned_alloc(size_t(CACHE_LINE), size_t(asked));
#endif
  if (!memory) throw OutOfMemory(asked);
  return memory;
}

inline void release(void* memory) {
#if defined(_WIN32)
  _aligned_free(memory);
#else
  std::free(memory);
#endif
}

struct Free {
  void operator()(void* memory) const { release(memory); }
};

template <class T>
using Array = std::unique_ptr<T, Free>;

template <class T>
Array<T> make_array(int64_t count) {
  return Array<T>(static_cast<T*>(allocate(count * int64_t(sizeof(T)))));
}

template <class T>
struct Allocator {
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;  // so that what cannot be copied can be held
  Allocator() = default;
  template <class Other>
  Allocator(const Allocator<Other>&) {}
  T* allocate(size_t count) { return static_cast<T*>(blockscale::allocate(int64_t(count * sizeof(T)))); }
  void deallocate(T* memory, size_t) { release(memory); }
  friend bool operator==(const Allocator&, const Allocator&) { return true; }
  friend bool operator!=(const Allocator&, const Allocator&) { return false; }
};

template <class T>
using Vector = std::vector<T, Allocator<T>>;

// Memory that is kept from use to use, and grows.
class Scratch {
 public:
  void hold(int64_t bytes) {
    if (bytes <= held_) return;
    memory_.reset();  // first, so that both are never held at once
    held_ = 0;
    memory_ = make_array<uint8_t>(bytes);
    held_ = bytes;
  }
  uint8_t* get() const { return memory_.get(); }

 private:
  Array<uint8_t> memory_;
  int64_t held_ = 0;
};

// What an exported function returns: 0, or how many bytes could not be had. No exception passes the C interface.
template <class Work>
int64_t bytes_refused(Work work) {
  try {
    work();
    return 0;
  } catch (const OutOfMemory& refused) {
    return refused.bytes;
  }
}

}  // namespace blockscale
