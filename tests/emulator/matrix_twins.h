// Host twins of ldmatrix, stmatrix, mma.sync and wgmma.
#pragma once
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

void wgmma_commit() {
    Nothing nothing;
    meet_warp("wgmma.commit_group", nothing, [](const auto&) {
        Warpgroup::OfWarp& own = own_products();
        own.groups.push_back(own.issued);
        own.committed = own.issued;
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

}  // namespace bs::host
