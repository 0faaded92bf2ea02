// The functions that Python calls. Each takes one struct of abi.h and returns 0, or how many bytes of
// memory could not be had.
#include "abi.h"
#include "isa/detect.h"
#include "products/multiply.h"
#include "runtime/memory.h"
#include "runtime/openmp.h"
#include "runtime/threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace blockscale;

EXPORT int bs_abi_version() { return ABI_VERSION; }

// The best instruction set of this CPU.
EXPORT int bs_best_isa() { return best_isa(); }

// Nonzero where work runs on these threads from now on.
EXPORT int bs_share_openmp(const OpenMp* openmp) { return share_openmp(*openmp); }

EXPORT int64_t bs_stream(const Matmul* call) {
  return bytes_refused([&] { multiply(*call, BY_STREAM); });
}

EXPORT int64_t bs_gemm(const Matmul* call) {
  return bytes_refused([&] { multiply(*call, BY_GEMM); });
}

EXPORT int64_t bs_int8(const Matmul* call) {
  return bytes_refused([&] { multiply(*call, BY_INT8); });
}

#if defined(__x86_64__)
EXPORT int64_t bs_amx(const Matmul* call) {
  return bytes_refused([&] { multiply(*call, BY_AMX); });
}
#elif defined(__aarch64__)
EXPORT int64_t bs_slices(const Matmul* call) {
  return bytes_refused([&] { multiply(*call, BY_SLICES); });
}

EXPORT int64_t bs_bfmmla(const Matmul* call) {
  return bytes_refused([&] { multiply(*call, BY_BFMMLA); });
}
#endif
