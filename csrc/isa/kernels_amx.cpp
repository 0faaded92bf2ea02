#define ISA_NAMESPACE amx
#include "products/amx.h"
#include "products/int8_amx.h"
#include "products/kernels.h"
