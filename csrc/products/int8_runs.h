// Runs of int8 products: columns that share a scale of x and a scale of the weight.
#pragma once
#include <type_traits>

#include "abi.h"

namespace blockscale {

constexpr int int8_run(int block) { return block == 16 ? 16 : INT8_BLOCK; }

}  // namespace blockscale

#if defined(ISA_NAMESPACE)
namespace blockscale::ISA_NAMESPACE {

// Calls work with the bits of a format's codes and the length of its runs as constants.
template <class Work>
void with_runs(const Format& format, Work work) {
  const auto with_bits = [&](auto run) {
    if (format.bits == 4) return work(std::integral_constant<int, 4>(), run);
    work(std::integral_constant<int, 2>(), run);
  };
  if (int8_run(format.block) == 16) return with_bits(std::integral_constant<int, 16>());
  with_bits(std::integral_constant<int, 32>());
}

}  // namespace blockscale::ISA_NAMESPACE
#endif
