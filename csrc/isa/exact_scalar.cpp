#define ISA_NAMESPACE exact_scalar
#include "exact/entries.h"
