#define ISA_NAMESPACE exact_neon
#include "exact/entries.h"
