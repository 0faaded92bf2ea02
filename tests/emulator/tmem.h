// Tensor memory (TMEM) of a CTA: 128 lanes of 512 columns, who allocated a column, and who accessed it last.
#pragma once
#include "shared_memory.h"

namespace bs::emulator {

constexpr u32 TMEM_LANES = 128, TMEM_COLUMNS = 512, QUADRANT = 32;
constexpr u32 CELL_LANES = 16;  // whose accesses are told apart: the fewest that an instruction has
constexpr u32 TMEM_POISON = 0xffffffff;

struct Allocation {
    u32 first, columns;
};

struct Tmem {
    std::vector<u32> words = std::vector<u32>(TMEM_LANES * TMEM_COLUMNS, TMEM_POISON);
    std::vector<Cell> cells = std::vector<Cell>(TMEM_LANES / CELL_LANES * TMEM_COLUMNS);
    std::vector<Allocation> allocations;
    u32 last_size = TMEM_COLUMNS;  // allocations may not grow
    bool has_relinquished = false;

    u32& at(u32 lane, u32 column) { return words[lane * TMEM_COLUMNS + column]; }

    bool is_allocated(u32 column) const {
        for (const Allocation& each : allocations)
            if (column >= each.first && column < each.first + each.columns) return true;
        return false;
    }

    // The first of so many free columns in a row, or TMEM_COLUMNS.
    u32 find_free(u32 columns) const {
        for (u32 first = 0; first + columns <= TMEM_COLUMNS; first += columns) {
            u32 i = 0;
            while (i < columns && !is_allocated(first + i)) i++;
            if (i == columns) return first;
        }
        return TMEM_COLUMNS;
    }

    void allocate(u32 first, u32 columns) {
        allocations.push_back({first, columns});
        for (u32 lane = 0; lane < TMEM_LANES; lane++)
            for (u32 i = 0; i < columns; i++) at(lane, first + i) = TMEM_POISON;
    }

    // Of `lanes` from `lane` on: 16 or a multiple of them.
    void note(u32 lane, u32 lanes, u32 first, u32 columns, bool writes, const Accessor& by, const char* name,
              const std::function<bool(const Stamp&)>& is_ordered) {
        for (u32 column = first; column < first + columns; column++) {
            BS_REQUIRE(column < TMEM_COLUMNS && is_allocated(column), "%s at TMEM column %u, which is not allocated", name,
                       column);
            for (u32 at = lane; at < lane + lanes; at += CELL_LANES)
                note_cell(cells[at / CELL_LANES * TMEM_COLUMNS + column], column, writes, by, name, is_ordered);
        }
    }

   private:
    static void note_cell(Cell& cell, u32 column, bool writes, const Accessor& by, const char* name,
                          const std::function<bool(const Stamp&)>& is_ordered) {
        const auto where = [&] { return format("TMEM column %u", column); };
        if (!by.knows(cell.write) && !is_ordered(cell.write))
            report_race(name, writes ? "writes" : "reads", where(), "wrote", cell.write, by);
        if (writes) {
            for (Stamp& read : cell.reads) {
                if (!by.knows_read(read)) report_race(name, "writes", where(), "read", read, by);
                read = {};
            }
            cell.write = {by.agent, by.clock};
        } else {
            note_read(cell, by);
        }
    }
};

}  // namespace bs::emulator
