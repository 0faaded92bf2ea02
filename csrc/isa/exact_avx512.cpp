#define ISA_NAMESPACE exact_avx512
#include "exact/entries.h"
