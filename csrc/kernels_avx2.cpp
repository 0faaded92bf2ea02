#define ISA_NAMESPACE avx2
#include "entries.h"
