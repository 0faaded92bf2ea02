// Tensor scales, one per matrix or per row: an exact maximum, then the format's rule.
//
//   BS_FORMAT        a Format of numbers/format.cuh
//   BS_TENSOR_SCALE  FROM_LARGEST or POWER
//   BS_NUMBERS       of x: Wide, BFloat16 or Float16
//   BS_VALUES        numbers of a unit
//   BS_AHEAD         units that a thread has under way at a time
//   BS_THREADS       of a CTA
#include "generated/tensor_scale_arguments.cuh"
#include "numbers/amax.cuh"
#include "numbers/tensor_scale.cuh"
#include "rows/memory.cuh"
#include "rows/rows.cuh"

using namespace bs;
using namespace bs::numbers;
using namespace bs::rows;

constexpr int THREADS = BS_THREADS, VALUES = BS_VALUES, AHEAD = BS_AHEAD;
using Units = Run<BS_NUMBERS, AHEAD * VALUES>;

// AHEAD units from `first` on, a CTA's threads apart; the last unit in place of what is beyond it.
BS_DEVICE Units load_units(const TensorScaleArguments& a, u32 which, u32 first) {
    constexpr int BYTES = Units::BYTES / AHEAD;
    Units units;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        const u32 unit = smaller(first + i * THREADS, a.units - 1);
        const Place at = place_of(a.rows, which * a.units + unit);
        load_bytes<BYTES>(units.words + i * BYTES / 4, row_of(a.x, at.group, at.row) + size_t(at.unit) * BYTES);
    }
    return units;
}

// blockIdx.y: which tensor scale; blockIdx.x: which part of its numbers. The last CTA to arrive knows
// the maximum of all.
extern "C" __global__ void __launch_bounds__(THREADS) tensor_scale(const __grid_constant__ TensorScaleArguments a) {
    const u32 which = blockIdx.y + blockIdx.z * gridDim.y;
    if (which * size_t(a.units) >= a.rows.units) return;
    ptx::trigger_dependents();
    u32 largest = 0;
    constexpr u32 STEP = AHEAD * THREADS;
    for (u32 first = blockIdx.x * STEP + threadIdx.x; first < a.units; first += gridDim.x * STEP)
        largest = larger(largest, finite_amax(load_units(a, which, first)));
    largest = largest_of_all<THREADS>(largest);
    if (threadIdx.x != 0) return;
    if (gridDim.x > 1) {
        atomicMax(a.amax + which, largest);
        __threadfence();
        if (atomicAdd(a.arrivals + which, 1u) != gridDim.x - 1) return;
        __threadfence();
        largest = atomicMax(a.amax + which, 0u);
    }
    a.out[which] = TensorScaleRule<BS_FORMAT, BS_TENSOR_SCALE>::of_amax(float_of(largest));
}
