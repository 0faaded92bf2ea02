// Where the tiles lie whose operands are in the ring. The thread that brings x works it out and puts it up, before anybody
// has the tile's first stage; those that multiply look it up. To find a tile takes them .3 us and more: divisions and, of
// ragged groups, a search, which nothing hides at the end of a tile.
#pragma once
#include "gemm/tile_order.cuh"

namespace bs::gemm {

template <class Shape>
struct TileBoard {
    // Whoever looks a tile up has not released its last stage yet. The other stages can hold the beginnings of so many more
    // tiles, since each has a turn at least.
    static constexpr int PLACES = 1 + (Shape::STAGES - 1 + Shape::TURN - 1) / Shape::TURN;

    OutputTile* tiles;  // in shared memory
    int place = 0;

    BS_DEVICE TileBoard(OutputTile* tiles) : tiles(tiles) {}

    // By the thread that then arrives at the `full` barrier of the first stage.
    BS_DEVICE void put_up(const OutputTile& tile) {
        tiles[place] = tile;
        step_on();
    }

    BS_DEVICE OutputTile current() const { return tiles[place]; }
    BS_DEVICE void step_on() { place = place + 1 < PLACES ? place + 1 : 0; }
};

}  // namespace bs::gemm
