// Which tile of the output comes when, and where the rows of a group begin.
//
// Neighbouring tiles run at the same time and should find each other's operands in the L2 cache: in a band of `band`
// tiles along m, tiles of x come first, then the next rows of w. So a band reads the weights once, and x of the band
// stays in the cache.
//
// With WHOLE_TILES, tiles of ragged groups begin at multiples of TILE_M rows of x, as blocked scales of x do: a tile may
// have rows of the group before it or behind it, which are not stored.
#pragma once
#include "gemm/groups.cuh"
#include "gemm/tiled_shape.cuh"

namespace bs::gemm {

struct OutputTile {
    int group;
    int row;         // of x: the first of the tile
    int first, end;  // of x: those of its group
    int n_tile;    // of TILE_N columns
};

// The tile along m and n of a group's `index`-th one, where m has `m_tiles` and n `n_tiles`.
BS_DEVICE void place_in_bands(int index, int m_tiles, int n_tiles, int band, int& m_tile, int& n_tile) {
    const int before = m_tiles > band ? index / (band * n_tiles) * band : 0;  // tiles along m of the bands before
    const int width = min(band, m_tiles - before), inside = index - before * n_tiles;
    n_tile = width > 1 ? inside / width : inside;
    m_tile = before + inside - n_tile * width;
}

template <class Shape, bool WHOLE_TILES = false>
struct TileOrder {
    using Arguments = typename Shape::Arguments;

    const Arguments& a;
    const int* first_row;   // of each group, and of what follows the last one; where groups are ragged
    const int* first_tile;  // along m, counted over all groups
    int n_tiles;            // of a cluster

    BS_DEVICE TileOrder(const Arguments& a, const int* starts)
        : a(a), first_row(starts), first_tile(starts + a.groups + 1) {
        n_tiles = (a.n + Shape::CLUSTER * Shape::TILE_N - 1) / (Shape::CLUSTER * Shape::TILE_N);
    }

    static BS_DEVICE int tiles_of(int rows) { return (rows + Shape::TILE_M - 1) / Shape::TILE_M; }

    // Of a ragged group that has these rows of x.
    static BS_DEVICE int tiles_between(int first, int end) {
        if constexpr (!WHOLE_TILES) return tiles_of(end - first);
        return first < end ? tiles_of(end) - first / Shape::TILE_M : 0;
    }

    BS_DEVICE int count() const {
        return (Shape::RAGGED ? first_tile[a.groups] : tiles_of(a.m) * a.groups) * n_tiles;
    }

    BS_DEVICE OutputTile at(int index, int rank) const {
        OutputTile tile;
        int m_tiles, before;  // along m: of the group, and of those before it
        if constexpr (Shape::RAGGED) {
            int low = 0, high = a.groups - 1;  // the last group that begins at or before this tile
            while (low < high) {
                const int middle = (low + high + 1) / 2;
                if (first_tile[middle] * n_tiles <= index)
                    low = middle;
                else
                    high = middle - 1;
            }
            tile.group = low;
            before = first_tile[low];
            m_tiles = first_tile[low + 1] - before;
            tile.first = first_row[low];
            tile.end = first_row[low + 1];
            tile.row = WHOLE_TILES ? tile.first / Shape::TILE_M * Shape::TILE_M : tile.first;
        } else {
            m_tiles = tiles_of(a.m);
            tile.group = a.groups > 1 ? index / (m_tiles * n_tiles) : 0;
            before = tile.group * m_tiles;
            tile.row = tile.first = tile.group * a.m;
            tile.end = tile.row + a.m;
        }
        int m_tile, n_tile;
        place_in_bands(index - before * n_tiles, m_tiles, n_tiles, a.band, m_tile, n_tile);
        tile.row += m_tile * Shape::TILE_M;
        tile.n_tile = n_tile * Shape::CLUSTER + rank;
        return tile;
    }
};

// Where the rows of groups begin, and their tiles, by all threads: [groups + 1] of each.
template <class Shape, bool WHOLE_TILES = false>
BS_DEVICE void find_starts(const typename Shape::Arguments& a, int* starts) {
    constexpr int WARPS = Shape::THREADS / 32;
    __shared__ int warp_rows[WARPS], warp_tiles[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int each = (a.groups + Shape::THREADS - 1) / Shape::THREADS, first = threadIdx.x * each;
    int own_rows = 0;
    for (int g = first; g < min(first + each, a.groups); g++) own_rows = min(own_rows + group_size(a, g), a.m);
    int rows = own_rows;  // of this lane and those before it
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, rows, step);
        if (lane >= step) rows = min(rows + other, a.m);
    }
    if (lane == 31) warp_rows[warp] = rows;
    int row = __shfl_up_sync(~0u, rows, 1);
    if (lane == 0) row = 0;
    __syncthreads();
    for (int w = 0; w < warp; w++) row = min(row + warp_rows[w], a.m);
    int own_tiles = 0, at = row;
    for (int g = first; g < min(first + each, a.groups); g++) {
        const int end = min(at + group_size(a, g), a.m);
        own_tiles += TileOrder<Shape, WHOLE_TILES>::tiles_between(at, end);
        at = end;
    }
    int tiles = own_tiles;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, tiles, step);
        if (lane >= step) tiles += other;
    }
    if (lane == 31) warp_tiles[warp] = tiles;
    __syncthreads();
    int tile = tiles - own_tiles;
    for (int w = 0; w < warp; w++) tile += warp_tiles[w];
    int* first_tile = starts + a.groups + 1;
    for (int g = first; g < min(first + each, a.groups); g++) {
        const int end = min(row + group_size(a, g), a.m);
        starts[g] = row, first_tile[g] = tile;
        tile += TileOrder<Shape, WHOLE_TILES>::tiles_between(row, end);
        row = end;
        if (g == a.groups - 1) starts[a.groups] = row, first_tile[a.groups] = tile;
    }
    __syncthreads();
}

}  // namespace bs::gemm
