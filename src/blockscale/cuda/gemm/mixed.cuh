// A GEMM of 16-bit x and coded weights by tcgen05 (sm_100, sm_103), for many rows of x:
//
//     out[m, n] = sum over k of x[m, k] * w[n, k] * scale[n, k / block]
//
// Operands. Weights are the A operand, in TMEM, decoded and multiplied by their scales out of the layout that
// gemm/stream.cuh reads too; rows of x are the columns of B, in shared memory, where nothing decoded ever comes. So a lane
// of TMEM is a row of w and a column a row of x, and a weight is decoded once for TILE_M rows of x.
//
// Work. A CTA has one warp that loads, one that multiplies, four that store and eight that decode. CTAs, or pairs of them,
// are persistent and take output tiles in turn. While four warps store a tile, the products of the next one run into
// another accumulator. Of a pair, each CTA has 128 rows of w and holds half the rows of x; the even one issues all products.
#pragma once
#include "gemm/clear_rows.cuh"
#include "gemm/mixed_epilogue.cuh"
#include "gemm/mixed_issue.cuh"
#include "ptx/elect.cuh"
#include "ptx/pdl.cuh"

namespace bs::gemm {

template <class Shape>
BS_DEVICE void decode_weights(const typename Shape::Arguments& a, const MixedRing<Shape>& ring,
                              const DecodedSets<Shape>& sets, int tiles) {
    typename Shape::Decoder decoder;
    const DecodingWarp<Shape> warp(ring);
    decoder.load(a.weight[Shape::GATED ? warp.half : 0].table);
    MixedDecode<Shape>(warp, &decoder).run(sets, a.k, tiles);
}

template <class Shape>
BS_DEVICE void mixed(const typename Shape::Arguments& a) {
    using Ring = MixedRing<Shape>;
    using Sums = Accumulators<Shape>;
    __shared__ u64 barriers[Ring::BARRIERS + Sums::BARRIERS + DecodedSets<Shape>::BARRIERS];
    __shared__ u32 tmem;
    u8* memory = ptx::dynamic_shared();
    memory += -ptx::shared_address(memory) & 1023;  // where panels with TMA's 128-byte swizzle may start
    u8* staging = memory + Shape::STAGES * Shape::STAGE_BYTES + Shape::N_WARPS * Shape::DECODED_BYTES;
    int* starts = reinterpret_cast<int*>(staging + Shape::STAGING_BYTES);
    const int rank = Shape::CTAS == 2 ? blockIdx.y : 0, warp = threadIdx.x / 32;
    const u32 first = ptx::shared_address(barriers);
    const Ring ring{ptx::shared_address(memory), first};
    Sums accumulators{first + 8 * Ring::BARRIERS, 0};
    DecodedSets<Shape> sets{first + 8 * (Ring::BARRIERS + Sums::BARRIERS), 0};
    accumulators.tmem = sets.tmem = begin_tmem<Shape>(&tmem, ring, accumulators, sets);
    ptx::trigger_dependents();
    ptx::wait_for_prerequisites();
    if constexpr (Shape::RAGGED) {
        find_starts<Shape>(a, starts);
        clear_rows_from<Shape>(a, starts[a.groups], blockIdx.x * Shape::CTAS + rank, gridDim.x * Shape::CTAS);
    }
    const TileOrder<Shape> order(a, starts);
    if (warp == 0) {
        if (ptx::elect_one()) ring.produce(a, order, rank);
    } else if (warp == 1) {
        if (rank == 0 && ptx::elect_one()) MixedIssue<Shape>(ring, sets).run(accumulators, a.k, order.count());
    } else if (warp < Shape::DECODING) {
        MixedEpilogue<Shape>(a, accumulators, staging).run(order, rank);
    } else {
        decode_weights<Shape>(a, ring, sets, order.count());
    }
    end_tmem<Shape>(accumulators.tmem);
}

}  // namespace bs::gemm
