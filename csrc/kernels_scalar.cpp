#define ISA_NAMESPACE scalar
#include "entries.h"
#include "int8.h"
