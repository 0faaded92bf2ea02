// Every header of blockscale/cuda at once (INCLUDES lists them): a kernel can quantise and multiply, and two GEMMs of
// different shapes can stand in one file. Names that mean one thing in one folder mean another in the next.
#include INCLUDES

using namespace bs;

struct Few {
    static constexpr int TILE_M = 1, TILES_PER_WARP = 1, TILE_K = 256, N_WARPS = 4, K_WARPS = 1, STAGES = 2;
    static constexpr int SPLITS = 1, CTAS_PER_SM = 1;
    static constexpr bool WGMMA = false, CLUSTER = false, GATED = false, RAGGED = false, SCALES_WEIGHTS = false;
    using X = ptx::BFloat16x2;
    using XScales = void;
    static constexpr int TABLE_BYTES = 0, ZERO_BYTES = 544, X_PITCH = 528, X_BYTES = 528, CODE_BYTES = 2048;
    static constexpr int SCALE_BYTES = 256, SCALE_GROUPS = 2, STAGE_ALIGNMENT = 16, STAGE_BYTES = 9744;
    static constexpr int DECODED_BYTES = 0, SUM_PITCH = 68;
};
struct Eight : Few {
    static constexpr int TILE_M = 8, ZERO_BYTES = 0, X_BYTES = 4224, STAGE_BYTES = 13440;
};

using Format = decode::WeightFormat<decode::E2M1, 4, decode::UE4M3, 16, true>;
using Quantized = numbers::Format<4, numbers::SmallFloat<2, 1, numbers::NUMBERS>, numbers::UE4M3, 16>;

static_assert(numbers::BFloat16::BYTES == 2 && ptx::BFloat16x2::is_bfloat16, "a number, and two in a register");
static_assert(numbers::UE4M3::MANTISSA == 3 && decode::UE4M3 == 0, "a type, and a name for one");
static_assert(sizeof(rows::Place) == 12 && sizeof(gemm::RowRange) == 12, "of a unit, and of a group");
static_assert(gemm::Shape<Few, Format>::BLOCKS_APART == 8 && gemm::Shape<Eight, Format>::BLOCKS_APART == 1, "");

extern "C" __global__ void __launch_bounds__(128)
    every_header(const __grid_constant__ gemm::Arguments a, const __grid_constant__ rows::QuantizeArguments q) {
    const rows::Place at = rows::place_of(q.rows, threadIdx.x);
    auto run = rows::load_run<numbers::Run<numbers::BFloat16, 16>>(rows::row_of(q.x, at.group, at.row), at.unit);
    const scale_search::ScaleRule<Quantized, 0> rule(1.0f);
    const scale_search::BlockNumbers<Quantized, 16> numbers(run, 0);
    *rows::row_of(q.scales, at.group, at.row) = u8(rule.of_amax<true>(numbers.amax).code);
    const gemm::RowRange all{0, 0, a.m};
    if (a.m == 1)
        gemm::stream<gemm::Shape<Few, Format>>(a, ptx::dynamic_shared(), all);
    else
        gemm::stream<gemm::Shape<Eight, Format>>(a, ptx::dynamic_shared(), all);
}
