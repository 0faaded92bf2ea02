#define ISA_NAMESPACE exact_avx2
#include "exact_entries.h"
