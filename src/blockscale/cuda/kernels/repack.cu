// Rows of codes and scales into the order of fragments: layouts/fragments.py.
//
// A warp takes a tile of 16 rows and a unit of 64 k, a lane the 32 codes that its words hold. What lies
// beyond n and k counts as code zero.
//
//   BS_BITS     of a code
//   BS_BLOCK    numbers that share a scale, which is one byte
//   BS_PLANES   codes come as bit planes, else as a bit stream
//   BS_FOLDED   codes become a sign and a distance from the middle
#include "decode/fragments.cuh"
#include "generated/repack_arguments.cuh"

using namespace bs;
using namespace bs::decode;

constexpr int BITS = BS_BITS, BLOCK = BS_BLOCK, WARPS = 8;
constexpr int UNITS_PER_GROUP = 8 * BLOCK / 64;  // scales of eight blocks stand together

// The codes of columns k and k + 1, k even, of a row: the second one above the first.
BS_DEVICE u32 read_pair(const u8* row, int k) {
    if constexpr (BS_PLANES) {
        u32 even = 0, odd = 0;
        const u32* words = reinterpret_cast<const u32*>(row) + k / 32 * BITS;
#pragma unroll
        for (int bit = 0; bit < BITS; bit++) {
            const u32 both = __ldg(words + bit) >> k % 32;
            even |= (both & 1u) << bit;
            odd |= (both >> 1 & 1u) << bit;
        }
        return odd << BITS | even;
    } else {
        const int first = k * BITS;
        const u8* from = row + first / 8;
        u32 both = __ldg(from);
        if (BITS > 4 || BITS == 3) both |= first % 8 + 2 * BITS > 8 ? __ldg(from + 1) << 8 : 0u;
        return both >> first % 8 & ((1u << 2 * BITS) - 1);
    }
}

template <int STEP, int VALUE>
BS_DEVICE void put_code(u32 (&words)[BITS], u32 code) {
    constexpr u32 HALF = 1u << (BITS - 1);
    if (BS_FOLDED) code = code >= HALF ? code - HALF : 2 * HALF - 1 - code;
#pragma unroll
    for (int bit = 0; bit < BITS; bit++) {
        const int at = bit_place<BITS, BS_FOLDED>(STEP, VALUE, bit);
        words[at / 32] |= (code >> bit & 1u) << at % 32;
    }
}

// A pair of columns of the upper or the lower row.
template <int STEP, int PAIR>
BS_DEVICE void put_pairs(u32 (&words)[BITS], const u8* const (&rows)[2], int k, int end) {
    if constexpr (PAIR < 4) {
        const u8* row = rows[PAIR % 2];
        const int column = k + 16 * STEP + 8 * (PAIR / 2);
        const u32 both = row && column < end ? read_pair(row, column) : 0u;
        put_code<STEP, 2 * PAIR>(words, both & ((1u << BITS) - 1));
        put_code<STEP, 2 * PAIR + 1>(words, both >> BITS);
        put_pairs<STEP, PAIR + 1>(words, rows, k, end);
    } else if constexpr (STEP < 3) {
        put_pairs<STEP + 1, 0>(words, rows, k, end);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) repack(const __grid_constant__ RepackArguments a) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int units = (a.k + 63) / 64, blocks = a.k / BLOCK, scale_groups = (blocks + 7) / 8;
    const int unit = blockIdx.x * WARPS + threadIdx.x / 32;
    if (unit >= units) return;
    const long long tiles = (a.n + 15) / 16, group = blockIdx.z;
    for (long long tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
        const u8 *codes[2], *scales[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const long long row = tile * 16 + g + 8 * i;
            codes[i] = row < a.n ? a.codes + group * a.code_group + row * a.code_row : nullptr;
            scales[i] = row < a.n ? a.scale + group * a.scale_group + row * a.scale_row : nullptr;
        }
        u32 words[BITS] = {};
        put_pairs<0, 0>(words, codes, 64 * unit + 2 * t, a.k);
        u32* to = reinterpret_cast<u32*>(a.codes_out) + ((group * tiles + tile) * units + unit) * (32 * BITS);
#pragma unroll
        for (int i = 0; i < BITS; i++) to[BITS * lane + i] = words[i];
        if (unit % UNITS_PER_GROUP) continue;
        const int scale_group = unit / UNITS_PER_GROUP;
        u32 four = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int block = 8 * scale_group + 2 * t + i % 2;
            if (scales[i / 2] && block < blocks) four |= u32(__ldg(scales[i / 2] + block)) << 8 * i;
        }
        reinterpret_cast<u32*>(a.scale_out)[((group * tiles + tile) * scale_groups + scale_group) * 32 + lane] = four;
    }
}
