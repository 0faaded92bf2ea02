// Codes of a table that stands in shared memory: a byte of codes finds all values that it means. Shared memory
// is as busy then as the integer pipe is with bytes in registers, so every second step is looked up here and the
// others there; of 5 bits, all here.
//
// A byte holds two codes of 3 or 4 bits (of 5 without their signs), or four of 2. Its row of the table has their
// values once for every lane that is served at the same time, so that no two meet at a bank: two values are
// 4 bytes for each of 32 lanes, four are 8 for each of 16. A row is 128 bytes. With room for two tables, rows are 256
// bytes apart, which makes a byte of codes and the place of the lane an address by one `prmt`; one table may leave every
// second row empty for it.
#pragma once
#include "decode/table.cuh"
#include "ptx/shared.cuh"

namespace bs::decode {

constexpr int TABLE_ROWS = 256, TABLE_BYTES = 128 * TABLE_ROWS;

template <class T, int BITS, bool SYMMETRIC, int TABLES>
struct SharedTable {
    static constexpr int PITCH = 128 * TABLES;
    static_assert(TABLES == 1 || TABLES == 2, "gate's and up's, at the most");
    Decoder<T, TABLE, BITS, SYMMETRIC> registers;
    static constexpr int WORDS = BITS == 2 ? 2 : 1;  // of an entry
    u32 base, place;  // of the table, and of the lane in a row

    BS_DEVICE void aim(u32 memory, int table) {
        base = memory;
        place = threadIdx.x * (4 * WORDS) % 128 + 128 * table;
    }

    // By thread number `thread` of so many: eight write a row.
    BS_DEVICE void fill(const float* values, int thread, int threads) const {
        constexpr int PARTS = 128 / 16;
        for (int i = thread; i < TABLE_ROWS * PARTS; i += threads) {
            const int row = i / PARTS;
            u32 entry[2];
#pragma unroll
            for (int word = 0; word < 2; word++) {
                const int shift = WORDS == 2 ? 2 * word : 0;
                entry[word] = T::from_floats(value(values, row >> shift), value(values, row >> 4 >> shift));
            }
            ptx::store_shared(base + row * PITCH + place / 128 * 128 + i % PARTS * 16, entry[0], entry[1],
                              entry[0], entry[1]);
        }
    }

    // As layouts/fragments.py folds codes: a sign above the distance from the middle, if there is one.
    static BS_DEVICE float value(const float* values, int nibble) {
        if (BITS == 2) return values[nibble & 3];
        if (BITS == 3) return values[nibble & 7];
        nibble &= 15;
        if (BITS == 5) return values[16 + nibble];
        return values[nibble < 8 ? 8 + nibble : 15 - nibble];
    }

    // By a register of codes: no load before the table is filled, since the codes come after.
    BS_DEVICE void look_up(u32 (&entry)[WORDS], u32 codes, int byte) const {
        ptx::load_table(entry, base + entry_of(codes, byte));
    }
    BS_DEVICE u32 entry_of(u32 codes, int byte) const {
        if (TABLES == 2) return ptx::prmt(codes, place, 0x5504 | byte << 4);
        const u32 row = byte == 0 ? codes << 7 : codes >> (8 * byte - 7);
        return (row & (TABLE_ROWS - 1) << 7) | place;
    }

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        if (BITS < 5 && q % 2) return registers.step(d, words, q);
        const u32 codes = words[q / WORDS];
#pragma unroll
        for (int u = 0; u < 4; u += WORDS) {
            u32 entry[WORDS];
            look_up(entry, codes, u / WORDS);
#pragma unroll
            for (int i = 0; i < WORDS; i++) d[u + i] = entry[i];
            if (BITS == 5) d[u] ^= signs_of_pair(words, q, u) & 0x80008000u;
        }
    }
};

// A decoder of either kind, made ready by thread number `thread` of so many.
template <class D>
BS_DEVICE void load(D& decoder, const float* values, u32, int, int, int) {
    decoder.load(values);
}

template <class T, int BITS, bool SYMMETRIC, int TABLES>
BS_DEVICE void load(SharedTable<T, BITS, SYMMETRIC, TABLES>& decoder, const float* values, u32 memory, int table,
                    int thread, int threads) {
    if (BITS < 5) decoder.registers.load(values);
    decoder.aim(memory, table);
    decoder.fill(values, thread, threads);
}

}  // namespace bs::decode
