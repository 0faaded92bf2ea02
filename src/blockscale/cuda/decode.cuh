// Codes to 16-bit floats: the words of a lane (layouts/fragments.py) -> the A operand of a step.
//
// The integer pipe is what a decoding kernel runs out of: it takes half an instruction per cycle, and
// beside the memory there is time for about two of them a weight. So bits stand where few find them:
//   - floats of 4 and 6 bits are shifted to where a 16-bit float has its fields (shifts to the left are
//     multiplications, which another pipe does), then multiplied by a power of two: exact, and right
//     for subnormals;
//   - tables are looked up as bytes by `prmt`, four indices of three bits at once, each in a nibble of
//     its own: low bytes and high bytes apart, then interleaved. A fourth bit is the sign (or the
//     other half of the table), a fifth the sign above that; they stand at the tops of bytes, so that
//     one mask serves four values;
//   - floats of 8 bits have a hardware conversion to float16 from sm_89 on.
#pragma once
#include "ptx.cuh"

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
        tables.low[half] = of_lane(pick_bytes(a, b, 0x6420));
        tables.high[half] = of_lane(pick_bytes(a, b, 0x7531));
    }
    return tables;
}

// Low and high bytes of four values -> two registers of two.
BS_DEVICE void interleave(u32& d0, u32& d1, u32 low, u32 high) {
    d0 = pick_bytes(low, high, 0x5140);
    d1 = pick_bytes(low, high, 0x7362);
}

// Every byte of x: all ones where its top bit is set.
BS_DEVICE u32 spread_tops(u32 x) { return pick_bytes(x, x, 0xBA98); }

enum Element { E2M1, E2M3, E3M2, E4M3, E5M2, TABLE };

template <class T, Element ELEMENT, int BITS, bool SYMMETRIC>
struct Decoder;

// Tables of 4 and 8 values: no sign, any values.
template <class T, int BITS>
struct ShortTable {
    ByteTables tables;

    BS_DEVICE void load(const float* values) { tables = load_tables<T>(values, 0, 1, 1 << BITS); }

    BS_DEVICE void look_up(u32 (&d)[4], u32 index) const {
        u32 rest = index >> 16;
        interleave(d[0], d[1], pick_bytes(tables.low[0], tables.low[1], index),
                   pick_bytes(tables.high[0], tables.high[1], index));
        interleave(d[2], d[3], pick_bytes(tables.low[0], tables.low[1], rest),
                   pick_bytes(tables.high[0], tables.high[1], rest));
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, TABLE, 2, SYMMETRIC> : ShortTable<T, 2> {
    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        this->look_up(d, (q % 2 ? words[q / 2] >> 2 : words[q / 2]) & 0x33333333u);
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, TABLE, 3, SYMMETRIC> : ShortTable<T, 3> {
    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        if (q < 3) {
            this->look_up(d, words[q] & 0x77777777u);
        } else {  // its bits are the spare ones of the other three
            this->look_up(d, ((words[0] >> 3) & 0x11111111u) | ((words[1] >> 2) & 0x22222222u) |
                                 ((words[2] >> 1) & 0x44444444u));
        }
    }
};

// Four values of a table of 8 or 16: the bytes of their magnitudes, by index nibbles and, in the
// longer table, by the tops of the bytes of `upper`.
template <int BITS>
struct Magnitudes;

template <>
struct Magnitudes<3> {
    ByteTables near;

    template <class T>
    BS_DEVICE void load(const float* values, int first, int direction) {
        near = load_tables<T>(values, first, direction, 8);
    }
    BS_DEVICE void look_up(u32& low, u32& high, u32 index, u32) const {
        low = pick_bytes(near.low[0], near.low[1], index);
        high = pick_bytes(near.high[0], near.high[1], index);
    }
};

template <>
struct Magnitudes<4> {
    ByteTables near, far;

    template <class T>
    BS_DEVICE void load(const float* values, int first, int direction) {
        near = load_tables<T>(values, first, direction, 8);
        far = load_tables<T>(values, first + 8 * direction, direction, 8);
    }
    BS_DEVICE void look_up(u32& low, u32& high, u32 index, u32 upper) const {
        u32 mask = spread_tops(upper);
        low = merge_bits(pick_bytes(far.low[0], far.low[1], index),
                         pick_bytes(near.low[0], near.low[1], index), mask);
        high = merge_bits(pick_bytes(far.high[0], far.high[1], index),
                          pick_bytes(near.high[0], near.high[1], index), mask);
    }
};

// Folded tables of 16 and 32: a sign above the index of a magnitude (of the upper half of the table).
// Where the lower half mirrors the upper one, the sign is flipped; else it has tables of its own.
template <int BITS, bool SYMMETRIC>
struct FoldedTable;

template <int BITS>
struct FoldedTable<BITS, true> {
    Magnitudes<BITS - 1> upper;

    template <class T>
    BS_DEVICE void load(const float* values) {
        upper.template load<T>(values, 1 << (BITS - 1), 1);
    }
    BS_DEVICE void look_up(u32& low, u32& high, u32 index, u32 tops, u32 signs) const {
        upper.look_up(low, high, index, tops);
        high ^= signs & 0x80808080u;
    }
};

template <int BITS>
struct FoldedTable<BITS, false> {
    Magnitudes<BITS - 1> upper, lower;

    template <class T>
    BS_DEVICE void load(const float* values) {
        upper.template load<T>(values, 1 << (BITS - 1), 1);
        lower.template load<T>(values, (1 << (BITS - 1)) - 1, -1);
    }
    BS_DEVICE void look_up(u32& low, u32& high, u32 index, u32 tops, u32 signs) const {
        u32 other_low, other_high, mask = spread_tops(signs);
        upper.look_up(low, high, index, tops);
        lower.look_up(other_low, other_high, index, tops);
        low = merge_bits(other_low, low, mask);
        high = merge_bits(other_high, high, mask);
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, TABLE, 4, SYMMETRIC> {
    FoldedTable<4, SYMMETRIC> table;

    BS_DEVICE void load(const float* values) { table.template load<T>(values); }

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        u32 w = words[q], index = w & 0x77777777u, low, high;
        table.look_up(low, high, index, 0, w);
        interleave(d[0], d[1], low, high);
        table.look_up(low, high, index >> 16, 0, w << 4);
        interleave(d[2], d[3], low, high);
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, TABLE, 5, SYMMETRIC> {
    FoldedTable<5, SYMMETRIC> table;

    BS_DEVICE void load(const float* values) { table.template load<T>(values); }

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        u32 w = words[q], index = w & 0x77777777u, low, high;
        table.look_up(low, high, index, w, words[4] << (2 * q));
        interleave(d[0], d[1], low, high);
        table.look_up(low, high, index >> 16, w << 4, words[4] << (2 * q + 1));
        interleave(d[2], d[3], low, high);
    }
};

// Four bits: sign, two of exponent, one of mantissa; as bits of a 16-bit float they mean 2^-LIFT of it.
template <class T, bool SYMMETRIC>
struct Decoder<T, E2M1, 4, SYMMETRIC> {
    static const int LIFT = (T::is_bfloat16 ? 127 : 15) - 1;

    BS_DEVICE void load(const float*) {}

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        bits(d, words, q);
#pragma unroll
        for (int u = 0; u < 4; u++) d[u] = T::times(d[u], T::power_of_two(LIFT));
    }

    // Without the last multiplication, for those who have another one to make.
    BS_DEVICE void bits(u32 (&d)[4], const u32* words, int q) const {
        const u32 w = words[q];
        if (T::is_bfloat16) {
            d[0] = w & 0x81C081C0u;
            d[1] = (w << 3) & 0x81C081C0u;
            d[2] = ((w << 6) & 0x01C001C0u) | ((w << 1) & 0x80008000u);
            d[3] = ((w >> 3) & 0x01C001C0u) | ((w << 2) & 0x80008000u);
        } else {
            d[0] = ((w << 3) & 0x0E000E00u) | (w & 0x80008000u);
            d[1] = ((w << 6) & 0x0E000E00u) | ((w << 3) & 0x80008000u);
            d[2] = ((w << 9) & 0x0E000E00u) | ((w << 1) & 0x80008000u);
            d[3] = (w & 0x0E000E00u) | ((w << 2) & 0x80008000u);
        }
    }
};

// Six bits: four above and two below, which come to stand side by side.
template <class T, Element ELEMENT>
struct SixBits {
    static const int BIAS = ELEMENT == E2M3 ? 1 : 3;
    static const int MANTISSA = ELEMENT == E2M3 ? 3 : 2;
    static const int FIELD = T::is_bfloat16 ? 7 : 10;       // mantissa bits of the 16-bit float
    static const int AT = FIELD - MANTISSA;                 // where the lowest bit comes to stand
    static const u32 TOP = 0x00010001u * (7u << (AT + 2));  // three bits below the sign
    static const u32 BOTTOM = 0x00010001u * (3u << AT);
    static const int LIFT = (T::is_bfloat16 ? 127 : 15) - BIAS;

    BS_DEVICE void load(const float*) {}

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        u32 above = words[3 * (q / 2) + q % 2], below = words[3 * (q / 2) + 2];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const int from = 4 * u + 2 * (q % 2);
            u32 p = above << (4 * u);
            u32 bits = (p & 0x80008000u) | ((p >> (12 - (AT + 2))) & TOP);
            bits |= (from < AT ? below << (AT - from) : below >> (from - AT)) & BOTTOM;
            d[u] = T::times(bits, T::power_of_two(LIFT));
        }
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, E2M3, 6, SYMMETRIC> : SixBits<T, E2M3> {};
template <class T, bool SYMMETRIC>
struct Decoder<T, E3M2, 6, SYMMETRIC> : SixBits<T, E3M2> {};

// Two bytes -> two float16, which hold both kinds of 8-bit floats exactly, infinities and NaN too.
template <Element ELEMENT>
BS_DEVICE u32 bytes_to_float16(u32 pair) {
    u32 d;
    if (ELEMENT == E5M2) return pick_bytes(pair, 0, 0x1404);
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(d) : "r"(pair));
#else
    u32 wide = pick_bytes(pair, 0, 0x1404);
    d = Float16::times((wide & 0x80008000u) | ((wide >> 1) & 0x3F803F80u), Float16::power_of_two(8));
    // All ones are NaN; taken for a number they are 480. The comparison answers 1.0, 0x3C00.
    u32 special;
    asm("set.eq.f16x2.f16x2 %0, %1, %2;" : "=r"(special) : "r"(d & 0x7FFF7FFFu), "r"(0x5F805F80u));
    d |= special | special << 1;
#endif
    return d;
}

template <class T, Element ELEMENT>
struct EightBits {
    BS_DEVICE void load(const float*) {}

    static BS_DEVICE u32 two(u32 pair) {
        u32 d = bytes_to_float16<ELEMENT>(pair);
        return T::is_bfloat16 ? T::from_floats(float16_low(d), float16_high(d)) : d;
    }

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        d[0] = two(words[2 * q]);
        d[1] = two(words[2 * q + 1]);
        d[2] = two(words[2 * q] >> 16);
        d[3] = two(words[2 * q + 1] >> 16);
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, E4M3, 8, SYMMETRIC> : EightBits<T, E4M3> {};
template <class T, bool SYMMETRIC>
struct Decoder<T, E5M2, 8, SYMMETRIC> : EightBits<T, E5M2> {};
