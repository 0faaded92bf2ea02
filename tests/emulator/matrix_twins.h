// Host twins of ldmatrix, stmatrix, mma.sync and wgmma.
#pragma once
#include "block_scale.h"
#include "memory_twins.h"
#include "warpgroup.h"

namespace bs::host {

// Rows of 8 x 8 matrices of 16 bits: lane 8 i + j has given the address of row j of matrix i.
struct MatrixPart {
    int lane;
    u32 address;
    u32* words;
};

static Place matrix_row(const std::vector<MatrixPart*>& lanes, int matrix, int row, const char* name) {
    return place_of(lanes[8 * matrix + row]->address, 16, 16, name);
}

static std::vector<MatrixPart*> by_lane(const std::vector<MatrixPart*>& parts) {
    std::vector<MatrixPart*> lanes(32);
    for (MatrixPart* part : parts) lanes[part->lane] = part;
    return lanes;
}

void ldmatrix(u32* words, int matrices, u32 address) {
    MatrixPart part{machine->current->lane(), address, words};
    meet_warp("ldmatrix", part, [matrices](const std::vector<MatrixPart*>& parts) {
        BS_REQUIRE(parts.size() == 32, "ldmatrix by %zu lanes", parts.size());
        const auto lanes = by_lane(parts);
        for (int matrix = 0; matrix < matrices; matrix++)
            for (int row = 0; row < 8; row++) {
                const Place place = matrix_row(lanes, matrix, row, "ldmatrix");
                place.cta->shared->note(place.offset, 16, false, this_thread(), "ldmatrix");
                for (int t = 0; t < 4; t++) std::memcpy(&lanes[4 * row + t]->words[matrix], place.pointer() + 4 * t, 4);
            }
    });
}

// Rows of 16 values of 4 or 6 bits at the start of 16 bytes, each to the low bits of a byte.
void ldmatrix_to_bytes(u32* words, int matrices, u32 address, int bits) {
    MatrixPart part{machine->current->lane(), address, words};
    meet_warp("ldmatrix", part, [matrices, bits](const std::vector<MatrixPart*>& parts) {
        BS_REQUIRE(parts.size() == 32, "ldmatrix by %zu lanes", parts.size());
        const auto lanes = by_lane(parts);
        for (int matrix = 0; matrix < matrices; matrix++)
            for (int row = 0; row < 8; row++) {
                const Place place = matrix_row(lanes, matrix, row, "ldmatrix");
                place.cta->shared->note(place.offset, 16, false, this_thread(), "ldmatrix");
                unsigned __int128 packed;
                std::memcpy(&packed, place.pointer(), 16);
                for (int t = 0; t < 4; t++) {
                    u32 word = 0;
                    for (int i = 0; i < 4; i++)
                        word |= (u32(packed >> bits * (4 * t + i)) & ((1u << bits) - 1)) << 8 * i;
                    lanes[4 * row + t]->words[matrix] = word;
                }
            }
    });
}

void stmatrix_transposed(u32 address, const u32* words, int matrices) {
    MatrixPart part{machine->current->lane(), address, const_cast<u32*>(words)};
    meet_warp("stmatrix", part, [matrices](const std::vector<MatrixPart*>& parts) {
        BS_REQUIRE(parts.size() == 32, "stmatrix by %zu lanes", parts.size());
        const auto lanes = by_lane(parts);
        for (int matrix = 0; matrix < matrices; matrix++)
            for (int column = 0; column < 8; column++) {
                const Place place = matrix_row(lanes, matrix, column, "stmatrix");
                place.cta->shared->note(place.offset, 16, true, this_thread(), "stmatrix");
                for (int row = 0; row < 8; row++) {
                    const u16 number = u16(lanes[4 * row + column / 2]->words[matrix] >> 16 * (column % 2));
                    std::memcpy(place.pointer() + 2 * row, &number, 2);
                }
            }
    });
}

// The matrix of a warp: lane 4 i + j has numbers 2 j and 2 j + 1 of row i.
struct TransposedPart {
    int lane;
    u32 matrix;
    u32* to;
};

void movmatrix_transposed(u32& to, u32 matrix) {
    TransposedPart part{machine->current->lane(), matrix, &to};
    meet_warp("movmatrix", part, [](const std::vector<TransposedPart*>& parts) {
        BS_REQUIRE(parts.size() == 32, "movmatrix by %zu lanes", parts.size());
        u16 numbers[8][8];
        for (const TransposedPart* each : parts)
            for (int i = 0; i < 2; i++)
                numbers[each->lane / 4][2 * (each->lane % 4) + i] = u16(each->matrix >> 16 * i);
        for (const TransposedPart* each : parts) {
            const int row = each->lane / 4, column = 2 * (each->lane % 4);
            *each->to = numbers[column][row] | u32(numbers[column + 1][row]) << 16;
        }
    });
}

struct MmaPart {
    int lane;
    float* c;
    u32 a[4], b[2];
};

// c += a b. Sums are exact where float32 holds them; the hardware rounds others in its own way.
void mma_m16n8k16(float* c, const u32* a, u32 b0, u32 b1, bool is_bfloat16) {
    MmaPart part{machine->current->lane(), c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    meet_warp("mma.sync", part, [is_bfloat16](const std::vector<MmaPart*>& parts) {
        BS_REQUIRE(parts.size() == 32, "mma.sync by %zu lanes", parts.size());
        double left[16][16], right[8][16];
        for (const MmaPart* p : parts)
            for (int i = 0; i < 8; i++) {
                const int g = p->lane / 4, k = p->lane % 4 * 2 + i % 2 + i / 4 * 8;
                left[g + i / 2 % 2 * 8][k] = number_of(p->a[i / 2], i % 2, is_bfloat16);
                if (i < 4) right[g][p->lane % 4 * 2 + i % 2 + i / 2 * 8] = number_of(p->b[i / 2], i % 2, is_bfloat16);
            }
        for (MmaPart* p : parts)
            for (int i = 0; i < 4; i++) {
                double sum = p->c[i];
                const int row = p->lane / 4 + i / 2 * 8, column = p->lane % 4 * 2 + i % 2;
                for (int k = 0; k < 16; k++) sum += left[row][k] * right[column][k];
                p->c[i] = float(sum);
            }
    });
}

static Warpgroup::OfWarp& own_products() {
    Warp& warp = *machine->current->warp;
    return warp.group->warps[warp.index % 4];
}

void wgmma_fence() {
    Nothing nothing;
    meet_warp("wgmma.fence", nothing, [](const auto&) { own_products().is_fenced = true; });
}

void wgmma_m64k16(float* d, int n, const u32* a, u64 b, bool is_bfloat16) {
    WgmmaPart part{d, {a[0], a[1], a[2], a[3]}};
    struct Given {
        int lane;
        WgmmaPart* part;
    } given{machine->current->lane(), &part};
    meet_warp("wgmma", given, [&](const std::vector<Given*>& parts) {
        BS_REQUIRE(parts.size() == 32, "wgmma by %zu lanes", parts.size());
        std::vector<WgmmaPart*> lanes(32);
        for (const Given* each : parts) lanes[each->lane] = each->part;
        Warp& warp = *machine->current->warp;
        BS_REQUIRE(warp.cta->warps.size() >= 4 * (warp.index / 4 + 1), "wgmma by a warpgroup of fewer than four warps");
        warp.group->issue(warp.index % 4, lanes, n, b, is_bfloat16);
    });
    machine->maybe_switch();
}

void takes_branch(bool taken) {
    Warp& warp = *machine->current->warp;
    if (warp.group) warp.group->warps[warp.index % 4].branch = taken;
}

void wgmma_commit() {
    Nothing nothing;
    meet_warp("wgmma.commit_group", nothing, [](const auto&) {
        Warpgroup::OfWarp& own = own_products();
        own.groups.push_back(own.issued);
        own.is_fenced = false;
    });
}

void wgmma_wait(int pending) {
    Nothing nothing;
    Warp& warp = *machine->current->warp;
    Warpgroup& group = *warp.group;
    Warpgroup::OfWarp& own = own_products();
    meet_warp("wgmma.wait_group", nothing, [](const auto&) {});
    if (own.groups.size() > size_t(pending)) {
        const size_t end = own.groups[own.groups.size() - 1 - size_t(pending)];
        while (group.products.size() < end || (end && group.products[end - 1]->warps < 4))
            machine->wait(group.waiters, [&group, end] {
                const bool begun = group.products.size() >= end;
                return format("wgmma number %zu, which %u of 4 warps have issued", end,
                              begun ? group.products[end - 1]->warps : 0);
            });
        group.run_until(end);
        group.deliver(warp.index % 4, end);
        if (machine->current->lane() == 0) machine->current->clock.learn(group.agent, u32(end));  // for all, who meet
    }
    meet_warp("wgmma.wait_group", nothing, [](const auto&) {});
    machine->maybe_switch();
}

void e4m3x2_to_float16x2(u32& to, u32 pair) {
    to = 0;
    for (int i = 0; i < 2; i++) {
        const u32 code = pair >> 8 * i & 0xff;
        const Term term = term_of(Small::E4M3, code);
        const float value = std::ldexp(float(term.significand), term.exponent - term.fraction);
        to |= (term.is_nan ? 0x7fffu : to_float16(code >> 7 && !term.significand ? -0.0f : value)) << 16 * i;
    }
}

void e8m0x2_to_bfloat16x2(u32& to, u32 pair) {
    to = 0;
    for (int i = 0; i < 2; i++) {
        const u32 code = pair >> 8 * i & 0xff;
        to |= (code == 0xff ? 0x7fffu : to_bfloat16(std::ldexp(1.0f, int(code) - 127))) << 16 * i;
    }
}

struct BlockScalePart {
    int lane;
    float* c;
    u32 a[4], b[2];
    ScaleRegister a_scale, b_scale;
};

// Element i of a lane's fragment: its row (of A) or column (of B), and its k.
static void place_in_fragment(int lane, int i, int in_word, bool is_a, int& row, int& k) {
    const int word = i / in_word;
    row = lane / 4 + (is_a ? word % 2 * 8 : 0);
    k = lane % 4 * in_word + i % in_word + (is_a ? word / 2 : word) * 4 * in_word;
}

// An element of a byte: e2m1 stands in its middle.
static Term element_of(Small type, bool is_packed, u32 code) {
    return term_of(type, type == Small::E2M1 && !is_packed ? code >> 2 & 15 : code & ((1u << bits_of(type)) - 1));
}

static void multiply_block_scaled(const std::vector<BlockScalePart*>& lanes, int kind, Small a_type, Small b_type) {
    const bool is_packed = kind != 0;
    const int in_word = is_packed ? 8 : 4, bits = 32 / in_word;
    const int scales = kind == 0 ? 1 : kind == 1 ? 2 : 4;
    const Small scale = kind == 2 ? Small::UE4M3 : Small::UE8M0;
    static thread_local Term a[16][64], b[8][64];
    int row, k;
    for (const BlockScalePart* p : lanes) {
        for (int i = 0; i < 4 * in_word; i++) {
            place_in_fragment(p->lane, i, in_word, true, row, k);
            a[row][k] = element_of(a_type, is_packed, p->a[i / in_word] >> bits * (i % in_word));
        }
        for (int i = 0; i < 2 * in_word; i++) {
            place_in_fragment(p->lane, i, in_word, false, row, k);
            b[row][k] = element_of(b_type, is_packed, p->b[i / in_word] >> bits * (i % in_word));
        }
    }
    for (const BlockScalePart* p : lanes)
        for (int i = 0; i < 4; i++) {
            const int m = p->lane / 4 + i / 2 * 8, n = p->lane % 4 * 2 + i % 2;
            const ScaleRegister& of_a = lanes[4 * (m % 8) + 2 * p->a_scale.thread + m / 8]->a_scale;
            const ScaleRegister& of_b = lanes[4 * n + p->b_scale.thread]->b_scale;
            Term a_scales[4], b_scales[4];
            for (int j = 0; j < 4; j++) {
                a_scales[j] = term_of(scale, of_a.word >> 8 * (of_a.byte + j * scales / 4) & 0xff);
                b_scales[j] = term_of(scale, of_b.word >> 8 * (of_b.byte + j * scales / 4) & 0xff);
            }
            p->c[i] = is_packed ? add_scaled_64(p->c[i], a[m], b[n], a_scales, b_scales)
                                : add_scaled_32(p->c[i], a[m], b[n], a_scales[0], b_scales[0]);
        }
}

void mma_block_scale(int kind, int a_type, int b_type, float* c, const u32* a, const u32* b, ScaleRegister a_scale,
                     ScaleRegister b_scale) {
    BlockScalePart part{machine->current->lane(), c, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, a_scale, b_scale};
    BS_REQUIRE(a_scale.thread >= 0 && a_scale.thread < 2 && b_scale.thread >= 0 && b_scale.thread < 4,
               "mma.sync.block_scale with scales of threads %d and %d", a_scale.thread, b_scale.thread);
    meet_warp("mma.sync.block_scale", part, [=](const std::vector<BlockScalePart*>& parts) {
        BS_REQUIRE(parts.size() == 32, "mma.sync.block_scale by %zu lanes", parts.size());
        std::vector<BlockScalePart*> lanes(32);
        for (BlockScalePart* each : parts) lanes[each->lane] = each;
        multiply_block_scaled(lanes, kind, Small(a_type), Small(b_type));
    });
}

}  // namespace bs::host
