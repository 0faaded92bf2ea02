// What gemm/tile_cycles.cuh decides, for Python to compare with its own predictions.
#include "gemm/tile_cycles.cuh"

using namespace bs;

extern "C" bool pays(const gemm::TileCycles* c, int tiles, int clusters) {
    return gemm::splitting_pays(*c, tiles, clusters, tiles / clusters);
}
