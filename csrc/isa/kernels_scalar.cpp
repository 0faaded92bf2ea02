#define ISA_NAMESPACE scalar
#include "products/gemm.h"
#include "products/stream.h"
#include "products/int8.h"
