#define ISA_NAMESPACE avx2
#include "blocks.h"
#include "stream.h"
#include "int8.h"
