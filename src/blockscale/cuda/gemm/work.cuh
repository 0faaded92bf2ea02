// What a cluster does: parts of some tiles, then whole tiles (stream-K).
//
// Clusters take whole tiles in turn. Where their number is no multiple of that of clusters, some clusters would be idle
// at the end. So the tiles that fill no round, and those of one round more, may be split: their turns along k, in a row,
// are cut into as many equal parts as there are clusters; where these are a multiple of the tiles, no part has turns of
// two tiles. A part that begins inside a tile leaves its sums in memory; the
// part with the beginning of that tile adds them, in order, and stores. It comes last in its cluster, when the others
// have been done: these begin with theirs.
//
// With PARTS a cluster has one tile, and each of its CTAs a part of its turns: gemm/cluster_sums.cuh.
//
// Kernels that split no tiles are compiled without all of it. How many tiles ragged groups have is found on the device, and
// so is whether it pays to split them.
#pragma once
#include "gemm/tile_cycles.cuh"
#include "gemm/tile_order.cuh"

namespace bs::gemm {

struct Segment {
    int tile;        // in order
    int first, end;  // turns: the k tiles that the mainloop unrolls
};

template <class Shape>
struct Work {
    const TileOrder<Shape>& order;
    int turns;            // of a tile
    int split = 0;        // turns of the tiles that are split
    int at = 0, end = 0;  // of this cluster's part
    int next;             // of the whole tiles

    // Divisions stand where they are needed alone: each delays the first copies of a CTA by about 0.1 us.
    BS_DEVICE Work(const TileOrder<Shape>& order) : order(order), next(blockIdx.x) {
        constexpr int TURN = 64 * Shape::TURN;
        turns = (order.a.k + TURN - 1) / TURN;
        if constexpr (Shape::SPLIT) split_tiles();
    }

    BS_DEVICE void split_tiles() {
        const int count = order.count(), clusters = gridDim.x;
        const int rounds = count / clusters, left = count - rounds * clusters;
        if (left == 0) return;
        if constexpr (Shape::RAGGED)
            if (!splitting_pays(order.a.cycles, count, clusters, rounds)) return;
        const int tiles = rounds == 0 ? left : left + clusters;
        split = tiles * turns;
        at = part(blockIdx.x);
        end = part(blockIdx.x + 1);
        next += tiles;
    }

    // Where the part of a cluster begins.
    BS_DEVICE int part(int cluster) const { return static_cast<u32>(cluster) * split / gridDim.x; }

    BS_DEVICE bool take(Segment& segment) {
        if constexpr (Shape::PARTS > 1) {
            const int part = blockIdx.y;
            segment = Segment{next, part * turns / Shape::PARTS, (part + 1) * turns / Shape::PARTS};
            next += gridDim.x;  // beyond the last tile
            return segment.tile < order.count();
        }
        if (Shape::SPLIT && at < end) {
            const int first = at % turns, taken = min(end - at, turns - first);
            segment = Segment{at / turns, first, first + taken};
            at += taken;
            return true;
        }
        segment = Segment{next, 0, turns};
        next += gridDim.x;
        return segment.tile < order.count();
    }

    // The clusters that have the other parts of a tile, in order, if this cluster has its beginning. With fewer turns than
    // clusters some have none.
    template <class Each>
    BS_DEVICE void for_other_parts(const Segment& segment, const Each& each) const {
        if (!Shape::SPLIT || segment.first > 0 || segment.end == turns) return;
        const int tile_end = (segment.tile + 1) * turns;
        for (int cluster = blockIdx.x + 1, first = end; first < tile_end; cluster++) {
            const int next = part(cluster + 1);
            if (first < next) each(cluster);
            first = next;
        }
    }
};

}  // namespace bs::gemm
