#define ISA_NAMESPACE decoder_avx2
#include "decoder/entries.h"
