#pragma once
#include "abi.h"

namespace blockscale {

// A product by one of Algorithm, which its machine must have. Throws OutOfMemory.
void multiply(const Matmul& call, int32_t algorithm);

}  // namespace blockscale
