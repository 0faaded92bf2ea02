#define ISA_NAMESPACE vnni
#include "products/int8.h"
#include "products/kernels.h"
