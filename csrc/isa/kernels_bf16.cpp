#define ISA_NAMESPACE bf16
#include "products/bfmmla.h"
