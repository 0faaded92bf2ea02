// Predictions of gemm/tile_cycles.cuh, for Python to compare with its own.
#include "gemm/tile_cycles.cuh"

using namespace bs;

extern "C" float whole(const gemm::TileCycles* c, int tiles, int clusters) { return gemm::cycles_of_whole(*c, tiles, clusters); }
extern "C" float split(const gemm::TileCycles* c, int tiles, int clusters) { return gemm::cycles_of_split(*c, tiles, clusters); }
extern "C" bool pays(const gemm::TileCycles* c, int tiles, int clusters) { return gemm::splitting_pays(*c, tiles, clusters); }
