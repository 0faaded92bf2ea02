#define ISA_NAMESPACE amx
#include "amx.h"
#include "kernels.h"
