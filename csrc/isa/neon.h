// What the kernels for ARM share: loops whose index is a constant, since instructions take lanes as constants.
#pragma once
#include <arm_neon.h>

#include <type_traits>
#include <utility>

#include "isa/vec.h"

// A lambda that becomes part of its caller: a call would keep sums in memory.
#define INLINED __attribute__((always_inline))

namespace blockscale::ISA_NAMESPACE {

constexpr int QUAD = 4;                       // rows of a weight in a register
constexpr int QUADS = cpu_tiles::ROWS / QUAD;  // of a tile

template <class Body, int... I>
ALWAYS_INLINE void unrolled_over(std::integer_sequence<int, I...>, const Body& body) {
  (body(std::integral_constant<int, I>()), ...);
}

// body(i) for i from 0 to COUNT - 1, as constants.
template <int COUNT, class Body>
ALWAYS_INLINE void unrolled(const Body& body) {
  unrolled_over(std::make_integer_sequence<int, COUNT>(), body);
}

}  // namespace blockscale::ISA_NAMESPACE
