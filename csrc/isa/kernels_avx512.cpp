#define ISA_NAMESPACE avx512
#include "products/gemm.h"
#include "products/stream.h"
