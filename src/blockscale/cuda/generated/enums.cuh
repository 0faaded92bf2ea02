// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/cuda/enums.py.
#pragma once
#include "base.cuh"

namespace bs::numbers {

// Of biases and outputs.
enum Dtype { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

}  // namespace bs::numbers

namespace bs::numbers {

// What the largest codes of a small float are: numbers, one NaN, or infinity and NaNs.
enum Specials { NUMBERS = 0, ONE_NAN = 1, IEEE = 2 };

}  // namespace bs::numbers

namespace bs::numbers {

// None, one that is given, or how one is derived from the amax.
enum TensorScale { NONE = 0, GIVEN = 1, FROM_LARGEST = 2, POWER = 3 };

}  // namespace bs::numbers

namespace bs::decode {

// Of weights that a GEMM decodes.
enum Element { E2M1 = 0, E2M3 = 1, E3M2 = 2, E4M3 = 3, E5M2 = 4, TABLE = 5 };

}  // namespace bs::decode

namespace bs::decode {

// Of blocks of weights that a GEMM decodes.
enum Scale { UE4M3 = 0, E8M0 = 1, E4M4 = 2 };

}  // namespace bs::decode

namespace bs::rows {

// Of canonical codes.
enum Packing { BIT_STREAM = 0, BIT_PLANES = 1 };

}  // namespace bs::rows

namespace bs::scale_search {

// How candidates for the scale of a block are found; the earlier one wins a tie.
enum Search { FROM_AMAX = 0, NEIGHBOURS = 1, FOUR_OVER_SIX = 2 };

}  // namespace bs::scale_search

namespace bs::gemm {

// Of a gated product.
enum Activation { NONE = 0, SILU = 1, GELU = 2, GELU_TANH = 3, SWIGLU_OAI = 4 };

}  // namespace bs::gemm
