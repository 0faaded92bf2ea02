#define ISA_NAMESPACE avx512
#include "entries.h"
