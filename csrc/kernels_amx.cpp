#define ISA_NAMESPACE amx
#include "amx.h"
#include "int8_tiles.h"
#include "kernels.h"
