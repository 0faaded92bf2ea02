// How long so many tiles take, as blockscale/kernels/matmul/sm90_gemm/cost.py predicts it. How many ragged groups have is
// known on the device alone, so it decides there whether they are split.
#pragma once
#include "generated/gemm_arguments.cuh"

namespace bs::gemm {

BS_DEVICE float cycles_of_whole(const TileCycles& c, int tiles, int clusters) {
    return (tiles + clusters - 1) / clusters * c.tile;
}

BS_DEVICE float cycles_of_split(const TileCycles& c, int tiles, int clusters) {
    const bool crosses = clusters % tiles > 0;
    const int others = clusters / tiles + (crosses ? 1 : -1);  // parts of a tile, beside the first
    return static_cast<float>(tiles) / clusters * c.parted + c.split + c.sums * others + (crosses ? c.crossing : 0.0f);
}

BS_DEVICE bool splitting_pays(const TileCycles& c, int tiles, int clusters) {
    return tiles > 0 && cycles_of_split(c, tiles, clusters) < cycles_of_whole(c, tiles, clusters);
}

}  // namespace bs::gemm
