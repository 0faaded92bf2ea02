// Whether tiles that fill no round take less time when they are split, as blockscale/kernels/matmul/sm90_gemm/cost.py predicts
// it. How many ragged groups have is known on the device alone, so it decides there.
#pragma once
#include "generated/gemm_arguments.cuh"

namespace bs::gemm {

// `rounds`: of all clusters, that tiles fill. Divisions delay the first copies of a CTA, so both times are compared as so many
// times the number of clusters.
BS_DEVICE bool splitting_pays(const TileCycles& c, int tiles, int clusters, int rounds) {
    int others = 1;  // parts of a tile, beside the first
    if (rounds == 0) {
        const int parts = clusters / tiles;
        others = parts * tiles < clusters ? parts + 1 : parts - 1;
    }
    const float split = tiles * c.tile + clusters * (c.split + c.sums * others);
    return split < static_cast<float>(clusters * (rounds + 1)) * c.tile;
}

}  // namespace bs::gemm
