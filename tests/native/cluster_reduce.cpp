// How the CTAs of a cluster sum and store (gemm/reduce.cuh), one thread after the other on the host. Counts what each
// loads from DSMEM: a load whose value nobody stores need not be over when its CTA ends.
//
//     cluster_reduce      "right" for each number of columns, or what is not
#include <cmath>
#include <cstdio>
#include <vector>

#include KERNEL_FILE

using bs::gemm::reduce_and_store, bs::gemm::RowRange;

constexpr int TILE_M = Shape::TILE_M, TILE_N = Shape::TILE_N, SPLITS = Shape::SPLITS, SUM_PITCH = Shape::SUM_PITCH;

static std::vector<std::vector<float>> left_by;  // each CTA's sums

static bool check(int n) {
    std::vector<float> out(TILE_M * n, NAN);
    Shape::Arguments a{};
    a.m = TILE_M, a.n = n, a.out = out.data(), a.out_stride = n, a.out_dtype = bs::numbers::FLOAT32;
    left_by.assign(SPLITS, std::vector<float>(TILE_M * SUM_PITCH));
    for (int s = 0; s < SPLITS; s++)
        for (int i = 0; i < TILE_M * SUM_PITCH; i++) left_by[s][i] = float(i << (s ? 12 : 0));
    for (int s = 0; s < SPLITS; s++) bs::host::cluster.shared[s] = left_by[s].data();
    bs::host::cluster.loads = 0;
    for (blockIdx.x = 0; blockIdx.x * TILE_N < unsigned(n); blockIdx.x++)
        for (blockIdx.y = 0; blockIdx.y < SPLITS; blockIdx.y++)
            for (threadIdx.x = 0; threadIdx.x < Shape::THREADS; threadIdx.x++) {
                bs::host::cluster.rank = blockIdx.y;
                reduce_and_store<Shape>(a, left_by[blockIdx.y].data(), RowRange{0, 0, TILE_M}, 0, TILE_M);
            }
    for (int row = 0; row < TILE_M; row++)
        for (int column = 0; column < n; column++) {
            const int i = row * SUM_PITCH + column % TILE_N;
            if (out[row * n + column] != float(i) + float(i << 12)) return std::printf("%d: wrong sums\n", n), false;
        }
    const long loads = bs::host::cluster.loads;
    const long needed = long(TILE_M) * ((n + 3) / 4) * SPLITS;
    if (loads != needed) return std::printf("%d: %ld loads, %ld are stored\n", n, loads, needed), false;
    return true;
}

int main() {
    bool right = true;
    for (const int n : {1, 3, 4, 20, TILE_N - 4, TILE_N, TILE_N + 7, 2 * TILE_N + 12}) right = check(n) && right;
    std::puts(right ? "right" : "");
    return right ? 0 : 1;
}
