// What stream.cu is specialised by, and the sizes that follow; its arguments.
#pragma once
#include "decode/shared_table.cuh"
#include "decode/scales.cuh"

typedef BS_X X;  // BFloat16 or Float16
constexpr Element ELEMENT = BS_ELEMENT;
constexpr Scale SCALE = BS_SCALE;
constexpr int BITS = BS_BITS;
constexpr int BLOCK = BS_BLOCK;      // 16 or 32 values
constexpr int COLUMNS = BS_TILE_M;  // rows of x at a time: 1, 2, 4 or a multiple of 8
constexpr int TILES = BS_TILES_PER_WARP;      // of a warp
constexpr int ROW_WARPS = BS_N_WARPS;
constexpr int K_WARPS = BS_K_WARPS;
constexpr int STAGES = BS_STAGES;
constexpr int SPLITS = BS_SPLITS;  // blocks that share the k of an output; 0: as many as the grid has in y
constexpr bool WIDE = BS_WGMMA;            // four warps multiply together, by `wgmma`
constexpr bool GATED = BS_GATED;          // tiles alternate between gate and up
constexpr bool SYMMETRIC = BS_SYMMETRIC;  // the lower half of a table mirrors its upper half

struct Weight {
    const u8* codes;
    const u8* scale;
    const float* tensor_scale;  // one per group, or null
    const float* table;         // of a codebook
    const void* bias;           // [groups, n], or null
};

struct Arguments {
#if BS_WGMMA
    alignas(64) u64 x_map[16];  // a CUtensorMap of x, and of the weights' codes and scales
    u64 code_map[2][16];
    u64 scale_map[2][16];
#endif
    // Most products need the next 104 bytes alone: two lines of 64, in which they come to a multiprocessor.
    int m, n, k;
    int settled;  // no kernel that may still run writes the weights
    int bias_dtype, out_dtype;
    void* out;  // [rows, n], rows apart by out_stride elements
    long long out_stride;
    const void* x;  // [rows, k], rows apart by x_stride elements; BS_X_CODED: by bytes of codes
    long long x_stride;
    const float* x_scale;  // one per row, or null
    Weight weight[2];
    int groups, sizes_are_64_bits;
    int activation;
    float alpha, limit;
    const u8* x_block_scale;  // BS_X_CODED
    long long x_block_stride;
    const void* group_sizes;
    float* partial;  // sums of the other splits
    u32* arrivals;   // one counter for each output tile, zero between launches
};

// Of 5 bits, a table in shared memory has the positive half: others than symmetric ones stay in registers, and its
// place is left empty.
constexpr bool SHARED_TABLE = BS_SHARED_TABLE && (BITS < 5 || SYMMETRIC);
typedef Either<SHARED_TABLE, SharedTable<X, BITS, SYMMETRIC>, Decoder<X, ELEMENT, BITS, SYMMETRIC>>::Type Decode;
constexpr int BEFORE_BYTES = BS_SHARED_TABLE ? TABLE_BYTES : 0;  // of shared memory, before all else

constexpr int CHUNK = BS_TILE_K;  // k of a stage of one warp: 128 or 256
constexpr int UNITS = CHUNK / 64;
constexpr int WARPS = ROW_WARPS * K_WARPS;
constexpr int THREADS = 32 * WARPS;
constexpr int REGISTERS = 65536 / (THREADS * BS_CTAS_PER_SM);  // that a thread can have
constexpr int BRANCHES = GATED ? 2 : 1;
constexpr int ROWS = 16 * TILES / BRANCHES * ROW_WARPS;  // of the output, of one block
constexpr int SPREAD = COLUMNS < 8 ? 8 / COLUMNS : 1;    // blocks that stand apart in an accumulator
constexpr int SETS = 8 / SPREAD;                         // accumulators for eight blocks
constexpr int B_TILES = COLUMNS < 8 ? 1 : COLUMNS / 8;
constexpr int SUMS = COLUMNS == 1 ? 2 : 4;  // running sums of a lane, of one tile and B tile

// Weights are multiplied by their scales where the product is exact in bfloat16, or where a table is rounded
// to it anyway, and rows of x are many; else sums of blocks are. NVFP4 fits float16 too. Infinities of E5M2
// would meet scales that bfloat16 rounds to zero.
constexpr int ELEMENT_BITS = ELEMENT == E2M1 ? 2 : ELEMENT == E2M3 || ELEMENT == E4M3 ? 4 : 3;  // significant
constexpr int SCALE_BITS = SCALE == E8M0 ? 1 : SCALE == UE4M3 ? 4 : 5;
constexpr bool FITS = ELEMENT == TABLE || (ELEMENT != E5M2 && ELEMENT_BITS + SCALE_BITS <= 8);
constexpr bool IS_NVFP4 = ELEMENT == E2M1 && SCALE == UE4M3 && BLOCK == 16;
constexpr bool SCALES_WEIGHTS =
    COLUMNS >= 8 && (IS_NVFP4 || (X::is_bfloat16 && FITS && COLUMNS >= 16));

// Scaled E2M1 is left where shifts put it, 2^-LIFT of itself: scales are multiplied by as much of that
// as their largest leaves room for, sums by the rest. A power of two may be as large as the largest float:
// where one leaves no room, weights are lifted before they are scaled (`Lift` in stream_tiles.cuh). Other
// elements have such scales made smaller by the largest weight, and sums larger.
constexpr bool UNLIFTED = ELEMENT == E2M1;
constexpr bool MAY_EXCEED = UNLIFTED && SCALE == E8M0;
constexpr float LARGEST_LIFTED = MAY_EXCEED ? 0x1p5f : 0x1p9f;  // of scales; E8M0 needs the rest below
constexpr float HEADROOM = ELEMENT == E4M3 || ELEMENT == TABLE ? 0x1p8f : 0x1p4f;
constexpr float SCALE_LIFT = UNLIFTED ? (X::is_bfloat16 ? 0x1p127f / LARGEST_LIFTED : 1.0f)
                             : SCALE == E8M0 ? 1.0f / HEADROOM : 1.0f;
constexpr float SUM_LIFT = !SCALES_WEIGHTS ? 1.0f
                           : UNLIFTED     ? (X::is_bfloat16 ? 0x1p126f / SCALE_LIFT : 0x1p14f)
                                          : 1.0f / SCALE_LIFT;

constexpr int X_PITCH = 2 * CHUNK + 16;   // bytes of a row; the 16 spread rows over the banks
constexpr int PANEL_BYTES = COLUMNS * 128;  // WIDE: of 64 k
constexpr int X_BYTES = WIDE ? UNITS * PANEL_BYTES : COLUMNS * X_PITCH;
constexpr int CODE_BYTES = UNITS * 128 * BITS;  // of one tile
constexpr int EIGHTS = CHUNK < 8 * BLOCK ? 1 : CHUNK / (8 * BLOCK);  // whose scales a chunk needs
constexpr int SCALE_BYTES = EIGHTS * 128;
constexpr int WARP_BYTES = TILES * (CODE_BYTES + SCALE_BYTES);
constexpr int ALIGNED = WIDE ? 1024 : 16;  // where x may start
constexpr int STAGE_BYTES = (K_WARPS * X_BYTES + WARPS * WARP_BYTES + ALIGNED - 1) / ALIGNED * ALIGNED;
constexpr int DECODED_BYTES = SCALES_WEIGHTS ? TILES * EIGHTS * 512 : 0;  // of scales, for one warp
constexpr int ZERO_BYTES = SPREAD > 1 ? 2 * CHUNK + 32 : 0;  // a row of x that is not there
static_assert(CHUNK >= 8 * BLOCK || COLUMNS >= 8, "eight blocks stand side by side");
static_assert(!WIDE || (SCALES_WEIGHTS && ROW_WARPS % 4 == 0), "four warps share rows of x");
static_assert(!WIDE || !BS_X_CODED, "the hardware copies x, and decodes nothing");
static_assert(!BS_SHARED_TABLE || ELEMENT == TABLE, "floats need no table");
static_assert(!GATED || TILES % 2 == 0, "tiles alternate between gate and up");
static_assert(COLUMNS == 1 || COLUMNS == 2 || COLUMNS == 4 || COLUMNS % 8 == 0, "columns");
