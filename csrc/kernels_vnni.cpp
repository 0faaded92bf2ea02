#define ISA_NAMESPACE vnni
#include "int8.h"
#include "kernels.h"
