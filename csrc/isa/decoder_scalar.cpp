#define ISA_NAMESPACE decoder_scalar
#include "decoder/entries.h"
