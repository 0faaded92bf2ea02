// Weights in the order of fragments back to rows of numbers: cast(fp32(fp32(decode * scale) * tensor)).
//
// A warp takes a tile of 16 rows and a unit of 64 k. All elements decode by a table of float32, so there
// is nothing to specialise but where bits stand.
#include "decode/fragments.cuh"
#include "decode/scales.cuh"
#include "gemm/epilogue.cuh"
#include "generated/dequantize_fragments_arguments.cuh"

using namespace bs;
using namespace bs::decode;

constexpr Scale SCALE = BS_SCALE;
constexpr int BITS = BS_BITS;
constexpr int BLOCK = BS_BLOCK;
constexpr bool FOLDED = BS_FOLDED;
constexpr int DTYPE = numbers::BS_DTYPE;
constexpr int WARPS = 8;

// The definition has one NaN, and conversions have others.
BS_DEVICE void store_exactly(void* base, long long at, float value) {
    if (value == value)
        gemm::store_number(base, at, value, DTYPE);
    else if (DTYPE == numbers::FLOAT32)
        static_cast<u32*>(base)[at] = 0x7FC00000u;
    else
        static_cast<u16*>(base)[at] = DTYPE == numbers::BFLOAT16 ? 0x7FC0u : 0x7E00u;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    dequantize_fragments(const __grid_constant__ DequantizeFragmentsArguments a) {
    __shared__ float table[1 << BITS];
    for (int i = threadIdx.x; i < 1 << BITS; i += 32 * WARPS) table[i] = a.table[i];
    __syncthreads();
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int units = (a.k + 63) / 64, scale_groups = (a.k / BLOCK + 7) / 8;
    const int unit = blockIdx.y * WARPS + threadIdx.x / 32;
    const long long tile = blockIdx.x, group = blockIdx.z;
    if (unit >= units) return;
    u32 words[BITS];
    const u8* from = a.codes + group * a.code_stride + (tile * units + unit) * (128 * BITS);
#pragma unroll
    for (int i = 0; i < BITS; i++) words[i] = reinterpret_cast<const u32*>(from)[BITS * lane + i];
    const u8* scales = a.scale + group * a.scale_stride + tile * scale_groups * 128 + 16 * g;
    const int rows[2] = {static_cast<int>(tile) * 16 + g, static_cast<int>(tile) * 16 + g + 8};
    float whole[2] = {1.0f, 1.0f};
    if (a.tensor_scale)
        for (int i = 0; i < 2; i++)
            if (rows[i] < a.rows)
                whole[i] = a.tensor_scale[group * a.tensor_scale_group + rows[i] * a.tensor_scale_row];
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const int block = (64 * unit + 16 * step) / BLOCK;
        if (64 * unit + 16 * step >= a.k) break;
        float s[4];  // rows g and g + 8, of an even and an odd block
        ScaleDecoder<SCALE>::four(s, *reinterpret_cast<const u32*>(scales + block / 8 * 128 +
                                                                  block % 8 / 2 * 4));
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const int lower = pair % 2;
            if (rows[lower] >= a.rows) continue;
            const float scale = block % 2 ? s[2 * lower + 1] : s[2 * lower];
            const int k = 64 * unit + 16 * step + 8 * (pair / 2) + 2 * t;
            const long long at = group * a.out_group + rows[lower] * a.out_row + k;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 code = code_of<BITS, FOLDED>(words, step, 2 * pair + i);
                float value = __fmul_rn(table[code], scale);
                if (a.tensor_scale) value = __fmul_rn(value, whole[lower]);
                store_exactly(a.out, at + i, value);
            }
        }
    }
}
