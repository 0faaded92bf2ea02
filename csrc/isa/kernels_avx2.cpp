#define ISA_NAMESPACE avx2
#include "products/gemm.h"
#include "products/stream.h"
#include "products/int8.h"
