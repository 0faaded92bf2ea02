// What is left to do when a library has multiplied: tensor scales, bias, activation and one cast, in one pass.
//
//   BS_DTYPE       of the output
//   BS_ACTIVATION  NONE, or that of a gated product
//   BS_THREADS     of a CTA, each of which takes four columns of some rows
#include "gemm/epilogue.cuh"
#include "generated/epilogue_arguments.cuh"

using namespace bs;
using namespace bs::gemm;

constexpr int DTYPE = numbers::BS_DTYPE, ACTIVATION = gemm::BS_ACTIVATION;
constexpr int VALUES = 4;  // of a thread

struct Four {
    float value[VALUES];
};

BS_DEVICE Four load_sums(const float* row, int count, bool adjacent) {
    if (adjacent) {
        const float4 all = *reinterpret_cast<const float4*>(row);
        return {{all.x, all.y, all.z, all.w}};
    }
    Four four;
#pragma unroll
    for (int i = 0; i < VALUES; i++) four.value[i] = i < count ? row[i] : 0.0f;
    return four;
}

// Of one product: sum * x's tensor scale * that of the weight + bias.
BS_DEVICE Four finished(const EpilogueBranch& branch, const EpilogueArguments& a, int group, int row, int column, float x_scale) {
    const int count = a.columns - column;
    Four four = load_sums(branch.sums + group * branch.sums_group + row * branch.sums_row + column, count, a.adjacent);
    const float scale = branch.tensor_scale ? branch.tensor_scale[group * branch.tensor_scale_group] : 1.0f;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        four.value[i] = four.value[i] * x_scale * scale;
        if (branch.bias && i < count)
            four.value[i] += load_number(branch.bias, group * branch.bias_group + column + i, branch.bias_dtype);
    }
    return four;
}

extern "C" __global__ void __launch_bounds__(BS_THREADS) epilogue(const __grid_constant__ EpilogueArguments a) {
    const int column = (blockIdx.x * BS_THREADS + threadIdx.x) * VALUES, group = blockIdx.z;
    if (column >= a.columns) return;
    for (int row = blockIdx.y; row < a.rows; row += gridDim.y) {
        const float given = a.x_scale ? a.x_scale[static_cast<long long>(group) * a.rows + row] : 1.0f;
        Four four = finished(a.gate, a, group, row, column, given * a.factor);
        if constexpr (ACTIVATION != NONE) {
            const Four up = finished(a.up, a, group, row, column, given * a.factor);
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                four.value[i] = activate(ACTIVATION, four.value[i], up.value[i], a.alpha, a.limit);
        }
        const long long at = group * a.out_group + row * a.out_row + column;
        if (a.adjacent)
            store_four(a.out, at, four.value, DTYPE);
        else
            for (int i = 0; i < VALUES && column + i < a.columns; i++)
                store_number(a.out, at + i, four.value[i], DTYPE);
    }
}
