#define ISA_NAMESPACE dotprod
#include "products/int8.h"
#include "products/slices_neon.h"
