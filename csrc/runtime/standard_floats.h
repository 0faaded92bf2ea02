// The state of floating-point arithmetic in which every item is worked on.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace blockscale {

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

}  // namespace blockscale
