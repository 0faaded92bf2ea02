// The decoders of products: of sixteen rows (decode.h), on ARM of four (decode_neon.h).
#pragma once
#include "products/decode.h"

#if defined(NEON_KERNELS)
#include "products/decode_neon.h"
#endif

namespace blockscale::ISA_NAMESPACE {

// Calls work with the decoder that a format names.
template <class Work>
inline void with_product_decoder(const Format& format, Work work) {
#if defined(NEON_KERNELS)
  with_quad_decoder(format, work);
#else
  with_decoder(format, work);
#endif
}

}  // namespace blockscale::ISA_NAMESPACE
