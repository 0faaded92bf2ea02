// Which warp of a CTA this is, and where it finds x.
#pragma once
#include "gemm/groups.cuh"
#include "ptx/pdl.cuh"

namespace bs::gemm {

template <class Shape>
struct WarpCoord {
    using Arguments = typename Shape::Arguments;

    const Arguments& a;
    u32 shared;  // address of the stages
    int lane, n_warp, k_warp;

    BS_DEVICE WarpCoord(const Arguments& a, u32 shared)
        : a(a),
          shared(shared),
          lane(threadIdx.x % 32),
          n_warp(threadIdx.x / 32 % Shape::N_WARPS),
          k_warp(threadIdx.x / 32 / Shape::N_WARPS) {}

    BS_DEVICE int tiles() const { return (a.n + 15) / 16; }
    BS_DEVICE int units() const { return (a.k + 63) / 64; }
    BS_DEVICE int scale_groups() const { return (a.k / Shape::Format::BLOCK + 7) / 8; }

    // The address of x that a lane gives to ldmatrix: by its number, two steps of 16 k, their halves, and 8 rows.
    // Rows of x that do not exist hold anything: their sums stand in columns of their own, which are not stored.
    BS_DEVICE u32 x_address(u32 stage, int row) const {
        return stage + k_warp * Shape::X_BYTES + row * Shape::X_PITCH + 16 * (lane / 8);
    }
};

}  // namespace bs::gemm
