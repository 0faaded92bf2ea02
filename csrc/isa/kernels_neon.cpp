#define ISA_NAMESPACE neon
#include "products/gemm.h"
#include "products/stream.h"
#include "products/int8.h"
#include "products/rests_neon.h"
