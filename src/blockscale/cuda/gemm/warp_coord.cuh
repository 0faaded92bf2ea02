// Which warp of a block this is, and where it finds x.
#pragma once
#include "gemm/groups.cuh"

struct Place {
    const Arguments& a;
    u32 shared;  // address of the stages
    int lane, row_warp, k_warp;

    BS_DEVICE Place(const Arguments& a, u32 shared)
        : a(a),
          shared(shared),
          lane(threadIdx.x % 32),
          row_warp(threadIdx.x / 32 % ROW_WARPS),
          k_warp(threadIdx.x / 32 / ROW_WARPS) {}

    BS_DEVICE int tiles() const { return (a.n + 15) / 16; }
    BS_DEVICE int units() const { return (a.k + 63) / 64; }
    BS_DEVICE int eights() const { return (a.k / BLOCK + 7) / 8; }

    // Where `load_matrices` finds x: it names by lane two steps of k, their halves, and 8 columns. Rows
    // of x that are not there hold anything: each has columns of its own, which are not stored.
    BS_DEVICE u32 x_address(u32 stage, int row) const {
        return stage + k_warp * X_BYTES + row * X_PITCH + 16 * (lane / 8);
    }
};
