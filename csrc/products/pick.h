// The kernels of an instruction set.
#pragma once
#include "isa/detect.h"
#include "products/kernels.h"
#include "products/row_tiles.h"

namespace blockscale {

struct Float32Kernels {
  decltype(&baseline::stream) stream;
  decltype(&baseline::gemm_tiles) gemm_tiles;
  decltype(&baseline::gemm_scratch) gemm_scratch;
  decltype(&baseline::gemm) gemm;
};

inline Float32Kernels float32_kernels(int isa) {
#define KERNELS_OF(isa) {isa::stream, isa::gemm_tiles, isa::gemm_scratch, isa::gemm}
#if defined(__x86_64__)
  if (isa >= AVX512) return KERNELS_OF(avx512);
  if (isa == AVX2) return KERNELS_OF(avx2);
#endif
  (void)isa;
  return KERNELS_OF(baseline);
#undef KERNELS_OF
}

struct Int8Kernel {
  decltype(&baseline::int8) multiply;
  int rows;    // of a row tile, at most
  int offset;  // added to the integers of weights
  bool tiled;  // more rows go by AMX
};

inline Int8Kernel int8_kernel(int isa) {
#if defined(__x86_64__)
  if (isa >= AVX512 && has_vnni())
    return {vnni::int8, rows_at_once(AVX512), 128, isa == AMX};
  if (isa >= AVX2) return {avx2::int8, rows_at_once(AVX2), 0, false};
  return {scalar::int8, rows_at_once(SCALAR), 0, false};
#elif defined(__aarch64__)
  return {isa >= I8MM ? i8mm::int8 : isa == DOTPROD ? dotprod::int8 : neon::int8, ARM_INT8_ROWS, 0, false};
#else
  (void)isa;
  return {scalar::int8, rows_at_once(SCALAR), 0, false};
#endif
}

}  // namespace blockscale
