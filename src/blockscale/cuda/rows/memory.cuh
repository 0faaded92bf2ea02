// Reading and writing runs of bytes that start at a multiple of their own largest power of two.
#pragma once
#include "base.cuh"
#include "ptx/pdl.cuh"

namespace bs::rows {

// The widest access that divides a run of so many bytes.
constexpr int widest(int bytes) { return bytes % 16 == 0 ? 16 : bytes & -bytes; }

template <int BYTES>
BS_DEVICE void load_bytes(u32* words, const u8* from) {
    constexpr int WIDTH = widest(BYTES);
#pragma unroll
    for (int at = 0; at < BYTES; at += WIDTH) {
        if constexpr (WIDTH == 16) {
            const uint4 part = __ldg(reinterpret_cast<const uint4*>(from + at));
            words[at / 4] = part.x, words[at / 4 + 1] = part.y;
            words[at / 4 + 2] = part.z, words[at / 4 + 3] = part.w;
        } else if constexpr (WIDTH == 8) {
            const uint2 part = __ldg(reinterpret_cast<const uint2*>(from + at));
            words[at / 4] = part.x, words[at / 4 + 1] = part.y;
        } else if constexpr (WIDTH == 4) {
            words[at / 4] = __ldg(reinterpret_cast<const u32*>(from + at));
        } else {
            const u32 part = WIDTH == 2 ? __ldg(reinterpret_cast<const u16*>(from + at)) : __ldg(from + at);
            words[at / 4] = (at % 4 ? words[at / 4] : 0u) | part << at % 4 * 8;
        }
    }
}

template <class Run>
BS_DEVICE Run load_run(const u8* row, u32 unit) {
    Run run;
    load_bytes<Run::BYTES>(run.words, row + size_t(unit) * Run::BYTES);
    return run;
}

template <int BYTES>
BS_DEVICE void store_bytes(const u32* words, u8* to) {
    constexpr int WIDTH = widest(BYTES);
#pragma unroll
    for (int at = 0; at < BYTES; at += WIDTH) {
        const u32* from = words + at / 4;
        if constexpr (WIDTH == 16)
            *reinterpret_cast<uint4*>(to + at) = make_uint4(from[0], from[1], from[2], from[3]);
        else if constexpr (WIDTH == 8)
            *reinterpret_cast<uint2*>(to + at) = make_uint2(from[0], from[1]);
        else if constexpr (WIDTH == 4)
            *reinterpret_cast<u32*>(to + at) = from[0];
        else if constexpr (WIDTH == 2)
            *reinterpret_cast<u16*>(to + at) = u16(from[0] >> at % 4 * 8);
        else
            to[at] = u8(from[0] >> at % 4 * 8);
    }
}

}  // namespace bs::rows
