// The streaming product: every weight is read once, decoded in registers, and multiplied by a few
// rows of x in float32. For the rows of a decoding step this runs at the speed of memory.
//
// Sixteen rows of the weight are sixteen lanes, so a sum runs along k inside its lane: in a fixed
// order, with no reduction, and whatever thread has the tile.
#pragma once
#include "products/decoders.h"
#include "products/row_loop.h"

#if defined(NEON_KERNELS)
#include "products/stream_neon.h"
#else
#include "products/stream_lanes.h"
#endif

namespace blockscale::ISA_NAMESPACE {

template <int M>
void stream_weight(const TileOf& at, int which, const float* x, float* totals) {
  const Format format = at.format(which);
  with_product_decoder(format, [&](const auto& decode) {
    using Decoder = std::decay_t<decltype(decode)>;
    // Only of these codes do the two halves of a chunk lie in words of their own.
    if constexpr (Decoder::BITS == 2 || Decoder::BITS == 4 || Decoder::BITS == 8)
      if (format.block == 16)
        return stream_tile<Decoder, M, true>(decode, format, at.codes(which), at.scales(which), x,
                                             at.call.k, totals);
    stream_tile<Decoder, M, false>(decode, format, at.codes(which), at.scales(which), x, at.call.k,
                                   totals);
  });
}

// One tile of one group, for every row of it. x: the group's rows, arranged as in row_tiles.h.
void stream(const Matmul& call, const float* x, int64_t group, int64_t tile) {
  const TileOf at(call, group, tile);
  const int64_t depth = cpu_tiles::chunks(call.k) * cpu_tiles::CHUNK;
  for_each_row_tile<MOST_ROWS>(at, [&](auto m, int which, int64_t row, float* totals) {
    stream_weight<decltype(m)::value>(at, which, x + row * depth, totals);
  });
}

}  // namespace blockscale::ISA_NAMESPACE
