// The order of tiles and the parts of split ones, as the clusters of a tiled GEMM see them.
//
//     tile_order M N K GROUPS RAGGED CLUSTERS SPLIT BAND [rows of each group]
//
// Every scale group of every tile must be multiplied by exactly one cluster, the parts of a tile must be those that its
// first part adds, in order, and tiles must cover the output once. Where CTAs of a cluster share the k of a tile, each has its
// own part of it, and no other tile.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>
#include <vector>

#include "gemm/work.cuh"

using namespace bs;

template <bool IS_RAGGED, bool IS_SPLIT = false>
struct Shape {
    static constexpr int TILE_M = 64, TILE_N = 128, CLUSTER = 2, THREADS = 384, PARTS = 1;
    static constexpr bool RAGGED = IS_RAGGED, SPLIT = IS_SPLIT;
    static constexpr int TURN = 2;
    using Arguments = gemm::WgmmaArguments;
};

// Clusters whose CTAs share the k of one tile.
struct Parted : Shape<false> {
    static constexpr int CLUSTER = 1, PARTS = 3;
};

static void expect(bool so, const char* what) {
    if (so) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(1);
}

// Tiles have rows of their group, each row has one tile, and whole tiles begin where blocked scales do.
template <class S, bool WHOLE>
void check_rows(const gemm::TileOrder<S, WHOLE>& order, int rows) {
    std::vector<int> tiles(rows, 0);
    for (int index = 0; index < order.count(); index++) {
        const gemm::OutputTile t = order.at(index, 0);
        if (S::RAGGED && WHOLE) expect(t.row % S::TILE_M == 0, "a whole tile begins at a multiple of its rows");
        if (t.n_tile > 0) continue;
        for (int row = max(t.row, t.first); row < min(t.row + S::TILE_M, t.end); row++) tiles[row]++;
    }
    for (const int count : tiles) expect(count == 1, "a row of x is in one tile");
}

template <class S, bool WHOLE>
std::vector<int> starts_of(const gemm::WgmmaArguments& a, const std::vector<int>& rows) {
    std::vector<int> starts(2 * (a.groups + 1), 0);
    for (int g = 0; g < a.groups && S::RAGGED; g++) {
        starts[g + 1] = starts[g] + rows[g];
        const int tiles = gemm::TileOrder<S, WHOLE>::tiles_between(starts[g], starts[g + 1]);
        starts[a.groups + 2 + g] = starts[a.groups + 1 + g] + tiles;
    }
    return starts;
}

template <bool RAGGED>
void check_whole(const gemm::WgmmaArguments& a, const std::vector<int>& rows) {
    const std::vector<int> starts = starts_of<Shape<RAGGED>, true>(a, rows);
    const gemm::TileOrder<Shape<RAGGED>, true> order(a, starts.data());
    check_rows(order, RAGGED ? starts[a.groups] : a.m * a.groups);
}

// `pays`: whether splitting tiles takes less time; it is asked for ragged groups alone.
template <bool RAGGED, bool SPLIT>
void check(const gemm::WgmmaArguments& a, const std::vector<int>& rows, bool pays) {
    using S = Shape<RAGGED, SPLIT>;
    const std::vector<int> starts = starts_of<S, false>(a, rows);
    const gemm::TileOrder<S> order(a, starts.data());
    check_rows(order, RAGGED ? starts[a.groups] : a.m * a.groups);
    bool any_split = false;
    std::map<int, std::map<int, std::pair<int, int>>> parts;  // tile -> first turn -> end, cluster
    int turns = 0;
    for (unsigned c = 0; c < gridDim.x; c++) {
        blockIdx.x = c;
        gemm::Work<S> work(order);
        turns = work.turns;
        for (gemm::Segment s; work.take(s);) {
            expect(s.first < s.end && s.end <= turns, "parts have turns of their tile");
            expect(parts[s.tile].emplace(s.first, std::make_pair(s.end, int(c))).second, "a part is taken once");
        }
    }
    expect(int(parts.size()) == order.count(), "every tile is taken");
    for (const auto& [tile, each] : parts) {
        any_split |= each.size() > 1;
        int at = 0;
        std::vector<int> others;
        for (const auto& [first, end] : each) {
            expect(first == at, "parts follow each other");
            if (first > 0) others.push_back(end.second);
            at = end.first;
        }
        expect(at == turns, "a tile is whole");
        blockIdx.x = each.at(0).second;
        const gemm::Work<S> work(order);
        std::vector<int> added;
        if (each.at(0).first < turns)
            work.for_other_parts(gemm::Segment{tile, 0, each.at(0).first}, [&](int c) { added.push_back(c); });
        expect(added == others, "the first part adds the others in order");
    }
    std::map<std::tuple<int, int, int>, int> seen;  // group, row, tile along n
    for (int index = 0; index < order.count(); index++)
        for (int rank = 0; rank < S::CLUSTER; rank++) {
            const gemm::OutputTile t = order.at(index, rank);
            expect(t.row < t.end, "a tile has rows");
            seen[{t.group, t.row, t.n_tile}]++;
        }
    for (const auto& each : seen) expect(each.second == 1, "a tile of the output comes once");
    expect(int(seen.size()) == S::CLUSTER * order.count(), "no two are the same");
    const bool fills_no_round = order.count() % int(gridDim.x) != 0;
    expect(any_split == (SPLIT && pays && fills_no_round && turns > 1), "tiles are split where it pays, and nowhere else");
}

void check_parts(const gemm::WgmmaArguments& a) {
    const gemm::TileOrder<Parted> order(a, nullptr);
    gridDim = {unsigned(order.count()), Parted::PARTS, 1};
    for (int tile = 0; tile < order.count(); tile++) {
        int at = 0, turns = 0;
        for (unsigned part = 0; part < Parted::PARTS; part++) {
            blockIdx = {unsigned(tile), part, 0};
            gemm::Work<Parted> work(order);
            gemm::Segment s;
            expect(work.take(s) && s.tile == tile, "a cluster has the tile of its number");
            expect(s.first == at && s.end >= at, "parts follow each other");
            at = s.end, turns = work.turns;
            expect(!work.take(s), "and no other");
        }
        expect(at == turns, "parts make a whole tile");
    }
}

int main(int argc, char** argv) {
    int facts[8];
    for (int i = 0; i < 8; i++) facts[i] = std::atoi(argv[1 + i]);
    gemm::WgmmaArguments a{};
    a.m = facts[0], a.n = facts[1], a.k = facts[2], a.groups = facts[3], a.band = facts[7];
    gridDim = {unsigned(facts[5]), 2, 1};
    std::vector<int> rows;
    for (int i = 9; i < argc; i++) rows.push_back(std::atoi(argv[i]));
    const auto check_either = [&](bool pays) {
        if (facts[6])
            facts[4] ? check<true, true>(a, rows, pays) : check<false, true>(a, rows, pays);
        else
            facts[4] ? check<true, false>(a, rows, pays) : check<false, false>(a, rows, pays);
    };
    a.cycles = gemm::TileCycles{1.0f, 0.0f, 0.0f};
    check_either(true);
    a.cycles.split = 1e9f;
    if (facts[4]) check_either(false);
    facts[4] ? check_whole<true>(a, rows) : check_whole<false>(a, rows);
    if (!facts[4]) check_parts(a);
    std::puts("right");
}
