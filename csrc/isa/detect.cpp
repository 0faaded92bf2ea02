#include "isa/detect.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && !defined(_WIN32)
#include <setjmp.h>
#include <signal.h>
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

namespace blockscale {

#if defined(__x86_64__)
namespace {

// AMX: the CPU has it, and the kernel lets this process use it.
bool amx_usable() {
#if defined(__linux__)
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
  if ((d & wanted) != wanted) return false;
  const long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

// Not among the names that every compiler's __builtin_cpu_supports knows.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1) != 0;
}

}  // namespace

Isa best_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
    return SCALAR;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return AVX2;
  return amx_usable() ? AMX : AVX512;
}

#elif defined(__aarch64__)
namespace {

struct Claims {
  bool dotprod, i8mm;
};

#if defined(__linux__)
Claims claims() {
  const unsigned long dotprod = 1ul << 20, i8mm = 1ul << 13;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  return {(getauxval(AT_HWCAP) & dotprod) != 0, (getauxval(AT_HWCAP2) & i8mm) != 0};
}
#elif defined(__APPLE__)
bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
Claims claims() { return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")}; }
#else
Claims claims() { return {false, false}; }
#endif

#if defined(_WIN32)
bool runs(void (*)()) { return true; }
#else
sigjmp_buf after_trap;

// Whether an instruction runs: it is executed once, and a trap is caught.
bool runs(void (*instruction)()) {
  struct sigaction trap = {}, before;
  trap.sa_handler = [](int) { siglongjmp(after_trap, 1); };
  if (sigaction(SIGILL, &trap, &before) != 0) return false;
  const bool ran = sigsetjmp(after_trap, 1) == 0 ? (instruction(), true) : false;
  sigaction(SIGILL, &before, nullptr);
  return ran;
}
#endif

// As numbers: this file is compiled for every ARM CPU.
void sdot() { asm volatile(".inst 0x4e809400" ::: "v0"); }   // sdot v0.4s, v0.16b, v0.16b
void smmla() { asm volatile(".inst 0x4e80a400" ::: "v0"); }  // smmla v0.4s, v0.16b, v0.16b

}  // namespace

Isa best_isa() {
  const Claims claimed = claims();
  if (!claimed.dotprod || !runs(sdot)) return NEON;
  return claimed.i8mm && runs(smmla) ? I8MM : DOTPROD;
}

#else
Isa best_isa() { return SCALAR; }
#endif

}  // namespace blockscale
