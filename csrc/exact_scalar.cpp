#define ISA_NAMESPACE exact_scalar
#include "exact_entries.h"
