#define ISA_NAMESPACE scalar
#include "blocks.h"
#include "stream.h"
#include "int8.h"
