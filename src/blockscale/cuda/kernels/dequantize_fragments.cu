// Weights in the order of fragments back to rows of numbers: cast(fp32(fp32(decode * scale) * tensor)).
//
// A warp takes a tile of 16 rows and a unit of 64 k. All elements decode by a table of float32, so there
// is nothing to specialise but where bits stand. The four lanes of a row exchange pairs of 16-bit numbers,
// so that each stores 16 bytes at a time.
#include "decode/fragments.cuh"
#include "decode/scales.cuh"
#include "generated/dequantize_fragments_arguments.cuh"
#include "generated/enums.cuh"
#include "numbers/exact.cuh"
#include "ptx/half_pair.cuh"
#include "ptx/warp.cuh"
#include "rows/memory.cuh"

using namespace bs;
using namespace bs::decode;

constexpr Scale SCALE = BS_SCALE;
constexpr int BITS = BS_BITS;
constexpr int BLOCK = BS_BLOCK;
constexpr bool FOLDED = BS_FOLDED;
constexpr int DTYPE = numbers::BS_DTYPE;
constexpr int WARPS = 8;
constexpr int BYTES = DTYPE == numbers::FLOAT32 ? 4 : 2;  // of a number

// Two neighbours as they are stored. The definition has one NaN, and conversions have others.
struct Pair {
    u32 words[BYTES / 2];

    BS_DEVICE void set(float low, float high) {
        if constexpr (DTYPE == numbers::FLOAT32) {
            words[0] = low == low ? numbers::bits_of(low) : 0x7FC00000u;
            words[1] = high == high ? numbers::bits_of(high) : 0x7FC00000u;
        } else {
            constexpr bool BRAIN = DTYPE == numbers::BFLOAT16;
            constexpr u32 NOT_A_NUMBER = BRAIN ? 0x7FC0u : 0x7E00u;
            u32 pair = BRAIN ? ptx::BFloat16x2::from_floats(low, high) : ptx::Float16x2::from_floats(low, high);
            if (low != low) pair = (pair & 0xFFFF0000u) | NOT_A_NUMBER;
            if (high != high) pair = (pair & 0xFFFFu) | NOT_A_NUMBER << 16;
            words[0] = pair;
        }
    }
};

// Lane t of four gets what all of them have at t, in the order of lanes.
BS_DEVICE void transpose_of_four_lanes(u32 (&words)[4], int t) {
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & distance) continue;
            const bool upper = t & distance;
            const u32 got = ptx::shfl_xor(upper ? words[i] : words[i + distance], distance);
            if (upper)
                words[i] = got;
            else
                words[i + distance] = got;
        }
}

// Of a row, the pairs that lane t has: pair i is at 8 i + 2 t of the 64 numbers from `to` on.
BS_DEVICE void store_row(const Pair (&pairs)[8], u8* to, int t, int count, bool inside) {
    if constexpr (DTYPE == numbers::FLOAT32) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (inside && 8 * i < count) rows::store_bytes<8>(pairs[i].words, to + (8 * i + 2 * t) * BYTES);
    } else {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) words[i] = pairs[4 * half + i].words[0];
            transpose_of_four_lanes(words, t);
            const int eight = 4 * half + t;
            if (inside && 8 * eight < count) rows::store_bytes<16>(words, to + 8 * eight * BYTES);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    dequantize_fragments(const __grid_constant__ DequantizeFragmentsArguments a) {
    __shared__ float table[1 << BITS];
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int units = (a.k + 63) / 64, scale_groups = (a.k / BLOCK + 7) / 8;
    const int unit = blockIdx.y * WARPS + threadIdx.x / 32;
    const long long tile = blockIdx.x, group = blockIdx.z;
    const int rows[2] = {static_cast<int>(tile) * 16 + g, static_cast<int>(tile) * 16 + g + 8};
    u32 words[BITS] = {}, scales[4] = {};  // all loads first: the table comes while they are under way
    float whole[2] = {1.0f, 1.0f};
    if (unit < units) {
        const u8* from = a.codes + group * a.code_stride + (tile * units + unit) * (128 * BITS);
#pragma unroll
        for (int i = 0; i < BITS; i++) words[i] = reinterpret_cast<const u32*>(from)[BITS * lane + i];
        const u8* of_row = a.scale + group * a.scale_stride + tile * scale_groups * 128 + 16 * g;
#pragma unroll
        for (int step = 0; step < 4; step++) {  // rows and k are padded
            const int block = (64 * unit + 16 * step) / BLOCK;
            scales[step] = *reinterpret_cast<const u32*>(of_row + block / 8 * 128 + block % 8 / 2 * 4);
        }
        if (a.tensor_scale)
            for (int i = 0; i < 2; i++)
                if (rows[i] < a.rows)
                    whole[i] = a.tensor_scale[group * a.tensor_scale_group + rows[i] * a.tensor_scale_row];
    }
    for (int i = threadIdx.x; i < 1 << BITS; i += 32 * WARPS) table[i] = a.table[i];
    __syncthreads();
    if (unit >= units) return;
    Pair pairs[2][8];
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const int block = (64 * unit + 16 * step) / BLOCK;
        float s[4];  // rows g and g + 8, of an even and an odd block
        ScaleDecoder<SCALE>::four(s, scales[step]);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const int lower = pair % 2;
            const float scale = block % 2 ? s[2 * lower + 1] : s[2 * lower];
            float value[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                value[i] = __fmul_rn(table[code_of<BITS, FOLDED>(words, step, 2 * pair + i)], scale);
                if (a.tensor_scale) value[i] = __fmul_rn(value[i], whole[lower]);
            }
            pairs[lower][2 * step + pair / 2].set(value[0], value[1]);
        }
    }
    u8* out = static_cast<u8*>(a.out) + (group * a.out_group + 64 * unit) * BYTES;
#pragma unroll
    for (int i = 0; i < 2; i++)
        store_row(pairs[i], out + rows[i] * a.out_row * BYTES, t, a.k - 64 * unit, rows[i] < a.rows);
}
