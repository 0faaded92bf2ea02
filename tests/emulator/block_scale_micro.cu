// Block-scaled products by mma.sync, one of each kind.
#include "ptx/mma_block_scale.cuh"

using namespace bs;

struct alignas(64) FragmentArguments {
    const u32 *a, *b, *a_scales, *b_scales;  // by lane
    float* c;                                // by lane, in and out
};

// One mma.sync of each kind; those of bytes take e4m3 and e2m1.
extern "C" __global__ void __launch_bounds__(32) scaled_fragments(const __grid_constant__ FragmentArguments f) {
    const int lane = threadIdx.x;
    u32 a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = f.a[4 * lane + i];
    for (int i = 0; i < 2; i++) b[i] = f.b[2 * lane + i];
    float c[4][4];
    for (int i = 0; i < 16; i++) c[i / 4][i % 4] = f.c[16 * lane + i];
    const u32 a_scale = f.a_scales[lane], b_scale = f.b_scales[lane];
    ptx::mma_mxf4nvf4<0, 1, 0, 2>(c[0], a, b, a_scale, b_scale);
    ptx::mma_mxf4<2, 0, 0, 3>(c[1], a, b, a_scale, b_scale);
    ptx::mma_mxf8f6f4<ptx::ByteFloat::E4M3, ptx::ByteFloat::E2M1, 3, 1, 1, 0>(c[2], a, b, a_scale, b_scale);
    ptx::mma_mxf8f6f4<ptx::ByteFloat::E3M2, ptx::ByteFloat::E2M3, 0, 0, 2, 1>(c[3], a, b, a_scale, b_scale);
    for (int i = 0; i < 16; i++) f.c[16 * lane + i] = c[i / 4][i % 4];
}
