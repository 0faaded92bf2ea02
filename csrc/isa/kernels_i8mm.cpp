#define ISA_NAMESPACE i8mm
#include "products/int8.h"
