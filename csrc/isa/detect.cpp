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

// What the CPU has, by the CPUID instruction, and which registers the system keeps for it. Asked here and not of
// __builtin_cpu_supports, for which the library would need a table of the compiler's runtime: zig's has none.
struct Features {
  unsigned basic = 0, extended[3] = {};  // leaf 1: ECX; leaf 7: EBX, ECX, EDX
  unsigned kept = 0;                     // lower half of XCR0

  Features() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    basic = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) extended[0] = b, extended[1] = c, extended[2] = d;
    if (basic & 1u << 27) asm volatile("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));  // OSXSAVE
  }
};

bool all_of(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

bool avx2_usable(const Features& cpu) {
  const unsigned fma = 1u << 12, avx = 1u << 28, f16c = 1u << 29, avx2 = 1u << 5, xmm_ymm = 0x6;
  return all_of(cpu.basic, fma | avx | f16c) && all_of(cpu.extended[0], avx2) && all_of(cpu.kept, xmm_ymm);
}

bool avx512_usable(const Features& cpu) {
  const unsigned f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, masks_zmm = 0xe0;
  return avx2_usable(cpu) && all_of(cpu.extended[0], f_dq_bw_vl) && all_of(cpu.kept, masks_zmm);
}

// The CPU has it, and the kernel lets this process use it.
bool amx_usable(const Features& cpu) {
#if defined(__linux__)
  if (!all_of(cpu.extended[2], 1u << 22 | 1u << 24 | 1u << 25)) return false;  // AMX-BF16, AMX-TILE, AMX-INT8
  const long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  (void)cpu;
  return false;
#endif
}

}  // namespace

Isa best_isa() {
  const Features cpu;
  if (!avx2_usable(cpu)) return SCALAR;
  if (!avx512_usable(cpu)) return AVX2;
  return amx_usable(cpu) ? AMX : AVX512;
}

bool has_vnni() {
  static const Features cpu;
  return avx512_usable(cpu) && (cpu.extended[1] & 1u << 11) != 0;
}

#elif defined(__aarch64__)
namespace {

struct Claims {
  bool dotprod, i8mm, bf16;
};

#if defined(__linux__)
Claims claims() {
  const unsigned long dotprod = 1ul << 20, i8mm = 1ul << 13, bf16 = 1ul << 14;  // HWCAP_ASIMDDP, HWCAP2_I8MM, _BF16
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  return {(first & dotprod) != 0, (second & i8mm) != 0, (second & bf16) != 0};
}
#elif defined(__APPLE__)
bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
Claims claims() {
  return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM"), has("hw.optional.arm.FEAT_BF16")};
}
#else
Claims claims() { return {false, false, false}; }
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
void sdot() { asm volatile(".inst 0x4e809400" ::: "v0"); }    // sdot v0.4s, v0.16b, v0.16b
void smmla() { asm volatile(".inst 0x4e80a400" ::: "v0"); }   // smmla v0.4s, v0.16b, v0.16b
void bfmmla() { asm volatile(".inst 0x6e40ec00" ::: "v0"); }  // bfmmla v0.4s, v0.8h, v0.8h

}  // namespace

Isa best_isa() {
  const Claims claimed = claims();
  if (!claimed.dotprod || !runs(sdot)) return NEON;
  if (!claimed.i8mm || !runs(smmla)) return DOTPROD;
  return claimed.bf16 && runs(bfmmla) ? BF16 : I8MM;
}

#else
Isa best_isa() { return SCALAR; }
#endif

}  // namespace blockscale
