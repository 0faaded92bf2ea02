#define ISA_NAMESPACE exact_avx2
#include "exact/entries.h"
