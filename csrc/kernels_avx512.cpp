#define ISA_NAMESPACE avx512
#include "blocks.h"
#include "stream.h"
