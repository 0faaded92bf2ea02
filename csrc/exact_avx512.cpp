#define ISA_NAMESPACE exact_avx512
#include "exact_entries.h"
