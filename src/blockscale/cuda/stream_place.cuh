// Which warp of a block this is, and where it finds its weights.
#pragma once
#include "stream_rows.cuh"

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

    // Of tile i of this warp; a tile beyond the last is computed and not stored.
    BS_DEVICE long long tile_of(int i, const Rows& rows) const {
        const int tiles = (a.n + 15) / 16;
        const int tile = (blockIdx.x * ROW_WARPS + row_warp) * (TILES / BRANCHES) + i / BRANCHES;
        return static_cast<long long>(rows.group) * tiles + min(tile, tiles - 1);
    }

    BS_DEVICE int units() const { return (a.k + 63) / 64; }
    BS_DEVICE int eights() const { return (a.k / BLOCK + 7) / 8; }

    BS_DEVICE const u8* codes_of(int i, const Rows& rows) const {
        return a.weight[i % BRANCHES].codes + tile_of(i, rows) * units() * (128 * BITS);
    }
    BS_DEVICE const u8* scales_of(int i, const Rows& rows) const {
        return a.weight[i % BRANCHES].scale + tile_of(i, rows) * eights() * 128;
    }

    // The codes of this warp's tiles in a stage; their scales follow.
    BS_DEVICE u32 own(u32 stage) const {
        return stage + K_WARPS * X_BYTES + (row_warp * K_WARPS + k_warp) * WARP_BYTES;
    }

    // Where `load_matrices` finds x: it names by lane two steps of k, their halves, and 8 columns. Rows
    // of x that are not there hold anything: each has columns of its own, which are not stored.
    BS_DEVICE u32 x_address(u32 stage, int row) const {
        return stage + k_warp * X_BYTES + row * X_PITCH + 16 * (lane / 8);
    }
};
