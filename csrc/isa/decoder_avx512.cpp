#define ISA_NAMESPACE decoder_avx512
#include "decoder/entries.h"
