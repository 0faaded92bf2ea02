// Codes of a table that stands in registers, as bytes: `prmt` looks up four at once, by indices of three
// bits, each in a nibble of its own; low bytes and high bytes apart, then interleaved. A fourth bit is the
// sign, or which half of the table. A fifth is the sign above that; those of a pair stand in the same bits of the
// two halves of a word, so that one shift brings them to where floats have theirs.
#pragma once
#include "decode/floats.cuh"

namespace bs::decode {

// Eight 16-bit values as two tables of bytes.
struct ByteTables {
    u32 low[2], high[2];
};

// The same value, but for all the compiler knows another one in every lane: what is the same in all
// is kept in uniform registers, and `prmt` would fetch it from there each time.
BS_DEVICE u32 of_lane(u32 value) { return __shfl_sync(~0u, value, threadIdx.x % 32); }

// A table in global memory, of `count` float32 values from `first` on, in steps of `direction`. By ordinary
// loads: others may be moved ahead of the wait for the kernel that writes it.
template <class T>
BS_DEVICE ByteTables load_tables(const float* values, int first, int direction, int count) {
    ByteTables tables;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = 4 * half + i;
            v[i] = at < count ? values[first + direction * at] : 0.0f;
        }
        u32 a = T::from_floats(v[0], v[1]), b = T::from_floats(v[2], v[3]);
        tables.low[half] = of_lane(ptx::prmt(a, b, 0x6420));
        tables.high[half] = of_lane(ptx::prmt(a, b, 0x7531));
    }
    return tables;
}

// Low and high bytes of four values -> two registers of two.
BS_DEVICE void interleave(u32& d0, u32& d1, u32 low, u32 high) {
    d0 = ptx::prmt(low, high, 0x5140);
    d1 = ptx::prmt(low, high, 0x7362);
}

// Tables of 4 and 8 values: no sign, any values. By four nibbles, of which the top bits are zero.
template <class T, int BITS>
struct ShortTable {
    ByteTables tables;

    BS_DEVICE void load(const float* values) { tables = load_tables<T>(values, 0, 1, 1 << BITS); }

    BS_DEVICE void look_up(u32& d0, u32& d1, u32 index) const {
        interleave(d0, d1, ptx::prmt(tables.low[0], tables.low[1], index),
                   ptx::prmt(tables.high[0], tables.high[1], index));
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, TABLE, 2, SYMMETRIC> : ShortTable<T, 2> {
    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        const u32 w = words[q / 2], shift = 16 * (q % 2);
        this->look_up(d[0], d[2], (w & 0x33333333u) >> shift);
        this->look_up(d[1], d[3], (w >> 2 & 0x33333333u) >> shift);
    }
};

// The fourth step of 3 bits: those that the nibbles of the other three have to spare.
BS_DEVICE u32 spare_bits(const u32* words) {
    return ((words[0] >> 3) & 0x11111111u) | ((words[1] >> 2) & 0x22222222u) | ((words[2] >> 1) & 0x44444444u);
}

template <class T, bool SYMMETRIC>
struct Decoder<T, TABLE, 3, SYMMETRIC> : ShortTable<T, 3> {
    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        const u32 index = q < 3 ? words[q] & 0x77777777u : spare_bits(words);
        this->look_up(d[0], d[1], index);
        this->look_up(d[2], d[3], index >> 16);
    }
};

// Sixteen values by nibbles: eight near ones by the lower three bits; where the mask has ones, the same with the
// other sign, or eight far ones.
template <bool MIRRORED>
struct Nibbles;

template <>
struct Nibbles<true> {
    ByteTables near;

    BS_DEVICE void look_up(u32& d0, u32& d1, u32 index, u32 mask) const {
        interleave(d0, d1, ptx::prmt(near.low[0], near.low[1], index),
                   ptx::prmt(near.high[0], near.high[1], index) ^ (mask & 0x80808080u));
    }
};

template <>
struct Nibbles<false> {
    ByteTables near, far;

    BS_DEVICE void look_up(u32& d0, u32& d1, u32 index, u32 mask) const {
        interleave(d0, d1,
                   ptx::merge_bits(ptx::prmt(far.low[0], far.low[1], index),
                              ptx::prmt(near.low[0], near.low[1], index), mask),
                   ptx::merge_bits(ptx::prmt(far.high[0], far.high[1], index),
                              ptx::prmt(near.high[0], near.high[1], index), mask));
    }
};

// The eight values of a word of nibbles, each with its own top bit.
template <bool MIRRORED>
BS_DEVICE void look_up_nibbles(u32 (&d)[4], const Nibbles<MIRRORED>& table, u32 w) {
    const u32 index = w & 0x77777777u, up = w << 4;
    table.look_up(d[0], d[1], index, ptx::prmt(w, up, 0x9D8C));  // signs of bytes
    table.look_up(d[2], d[3], index >> 16, ptx::prmt(w, up, 0xBFAE));
}

// Every byte of x: all ones where its top bit is set; if only that one counts, x itself.
template <bool MIRRORED>
BS_DEVICE u32 spread_tops(u32 x) {
    return MIRRORED ? x : ptx::prmt(x, x, 0xBA98);
}

// The same where the top bits of the first four are those of the bytes, and the others' four bits below.
template <bool MIRRORED>
BS_DEVICE void look_up_bytes(u32 (&d)[4], const Nibbles<MIRRORED>& table, u32 w) {
    const u32 index = w & 0x77777777u;
    table.look_up(d[0], d[1], index, spread_tops<MIRRORED>(w));
    table.look_up(d[2], d[3], index >> 16, spread_tops<MIRRORED>(w << 4));
}

// Every second step has its top bits where this finds them, the others where a pair is looked up.
template <bool MIRRORED>
struct FourBits {
    Nibbles<MIRRORED> table;

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        if (q % 2)
            look_up_bytes(d, table, words[q]);
        else
            look_up_nibbles(d, table, words[q]);
    }
};

template <class T>
struct Decoder<T, TABLE, 4, true> : FourBits<true> {
    BS_DEVICE void load(const float* values) { table.near = load_tables<T>(values, 8, 1, 8); }
};

template <class T>
struct Decoder<T, TABLE, 4, false> : FourBits<false> {
    BS_DEVICE void load(const float* values) {
        table.near = load_tables<T>(values, 8, 1, 8);
        table.far = load_tables<T>(values, 7, -1, 8);
    }
};

// The signs of a pair of step q, at the tops of its halves.
BS_DEVICE u32 signs_of_pair(const u32* words, int q, int pair) { return words[4] << (15 - 4 * q - pair); }

template <class T>
struct Decoder<T, TABLE, 5, true> {
    Nibbles<false> upper;

    BS_DEVICE void load(const float* values) {
        upper.near = load_tables<T>(values, 16, 1, 8);
        upper.far = load_tables<T>(values, 24, 1, 8);
    }
    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        look_up_nibbles(d, upper, words[q]);
#pragma unroll
        for (int u = 0; u < 4; u++) d[u] ^= signs_of_pair(words, q, u) & 0x80008000u;
    }
};

template <class T>
struct Decoder<T, TABLE, 5, false> {
    Nibbles<false> upper, lower;

    BS_DEVICE void load(const float* values) {
        upper.near = load_tables<T>(values, 16, 1, 8);
        upper.far = load_tables<T>(values, 24, 1, 8);
        lower.near = load_tables<T>(values, 15, -1, 8);
        lower.far = load_tables<T>(values, 7, -1, 8);
    }
    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        u32 below[4];
        look_up_nibbles(d, upper, words[q]);
        look_up_nibbles(below, lower, words[q]);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const u32 signs = signs_of_pair(words, q, u);
            d[u] = ptx::merge_bits(below[u], d[u], ptx::prmt(signs, signs, 0xBB99));
        }
    }
};

}  // namespace bs::decode
