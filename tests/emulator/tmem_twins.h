// Host twins of tcgen05.ld and tcgen05.st, and of products whose A operand is in TMEM.
#pragma once
#include "tcgen05_f16.h"
#include "tcgen05_twins.h"

namespace bs::host {

// Where register r of thread t lies, from the lane and column of the address on (PTX manual, shapes of tcgen05.ld/st).
struct TmemShape {
    const char* name;
    u32 lanes;
    u32 registers, columns;  // of repetition .x1
    u32 (*lane)(u32 thread, u32 r);
    u32 (*column)(u32 thread, u32 r);
};

static constexpr TmemShape TMEM_32X32B{
    "32x32b", 32, 1, 1, [](u32 t, u32) { return t; }, [](u32, u32 r) { return r; }};
static constexpr TmemShape TMEM_16X128B{
    "16x128b", 16, 2, 4, [](u32 t, u32 r) { return t / 4 + 8 * (r % 2); },
    [](u32 t, u32 r) { return 4 * (r / 2) + t % 4; }};
static constexpr TmemShape TMEM_16X256B{
    "16x256b", 16, 4, 8, [](u32 t, u32 r) { return t / 4 + 8 * (r / 2 % 2); },
    [](u32 t, u32 r) { return 8 * (r / 4) + 2 * (t % 4) + r % 2; }};

struct TmemPart {
    int lane;
    u32* to;          // of ld
    const u32* from;  // of st
    u32 address;
};

// Lanes and columns of one instruction of a warp, which the warp must reach.
struct TmemBox {
    u32 lane, lanes, column, columns;

    TmemBox(const Warp& warp, const TmemShape& shape, int registers, const std::vector<TmemPart*>& parts,
            const char* name) {
        BS_REQUIRE(parts.size() == 32, "%s by %zu lanes", name, parts.size());
        const u32 quadrant = warp.index % 4, at = parts[0]->address;
        for (const TmemPart* each : parts) BS_REQUIRE(each->address == at, "%s with different addresses", name);
        lane = at >> 16, lanes = shape.lanes, column = at & 0xffff, columns = u32(registers) / shape.registers * shape.columns;
        BS_REQUIRE(lane / QUADRANT == quadrant && lane % shape.lanes == 0,
                   "%s.%s of TMEM lane %u by warp %u, which reaches lanes %u to %u", name, shape.name, lane, warp.index,
                   QUADRANT * quadrant, QUADRANT * quadrant + 31);
    }
};

static TmemAccesses& accesses_of(std::shared_ptr<TmemAccesses>& kept, const Warp& warp, const char* name) {
    if (!kept) {
        kept = std::make_shared<TmemAccesses>();
        kept->agent = machine->add_agent(format("%s of warp %u of %s", name, warp.index, warp.cta->name().c_str()), true);
    }
    return *kept;
}

static void carry_out(TmemAccesses& accesses, std::function<void()> late) {
    if (machine->is_early())
        late();
    else
        accesses.pending.push_back(std::move(late));
}

static void load_tmem(const TmemShape& shape, u32* to, int registers, u32 address) {
    Warp& warp = *machine->current->warp;
    TmemPart part{machine->current->lane(), to, nullptr, address};
    meet_warp("tcgen05.ld", part, [&](const std::vector<TmemPart*>& parts) {
        const TmemBox box(warp, shape, registers, parts, "tcgen05.ld");
        TmemAccesses& loads = accesses_of(warp.tmem_loads, warp, "tcgen05.ld");
        const Accessor by{loads.agent, ++loads.issued, nullptr, machine->current->tmem_view.get(), true};
        Tmem& memory = tmem_of(*warp.cta);
        memory.note(box.lane, box.lanes, box.column, box.columns, false, by, "tcgen05.ld",
                    [](const Stamp&) { return false; });
        std::vector<TmemPart> kept;
        for (const TmemPart* each : parts) {
            std::memset(each->to, POISON, sizeof(u32) * size_t(registers));
            kept.push_back(*each);
        }
        carry_out(loads, [&memory, &shape, kept, box, registers] {
            for (const TmemPart& each : kept)
                for (u32 r = 0; r < u32(registers); r++) {
                    const u32 thread = u32(each.lane);
                    each.to[r] = memory.at(box.lane + shape.lane(thread, r), box.column + shape.column(thread, r));
                }
        });
    });
}

void tcgen05_ld_32x32b(u32* to, int registers, u32 address) { load_tmem(TMEM_32X32B, to, registers, address); }
void tcgen05_ld_16x256b(u32* to, int registers, u32 address) { load_tmem(TMEM_16X256B, to, registers, address); }

// What is stored is there after the wait; until then TMEM holds NaN.
void tcgen05_st_16x128b(u32 address, const u32* from, int registers) {
    const TmemShape& shape = TMEM_16X128B;
    Warp& warp = *machine->current->warp;
    TmemPart part{machine->current->lane(), nullptr, from, address};
    meet_warp("tcgen05.st", part, [&](const std::vector<TmemPart*>& parts) {
        const TmemBox box(warp, shape, registers, parts, "tcgen05.st");
        TmemAccesses& stores = accesses_of(warp.tmem_stores, warp, "tcgen05.st");
        const Accessor by{stores.agent, ++stores.issued, nullptr, machine->current->tmem_view.get(), true};
        Tmem& memory = tmem_of(*warp.cta);
        // A warp's stores to the same place come in order.
        memory.note(box.lane, box.lanes, box.column, box.columns, true, by, "tcgen05.st",
                    [&](const Stamp& stamp) { return stamp.agent == stores.agent; });
        struct Word {
            u32 lane, column, bits;
        };
        std::vector<Word> words;
        for (const TmemPart* each : parts)
            for (u32 r = 0; r < u32(registers); r++) {
                const u32 thread = u32(each->lane);
                words.push_back({box.lane + shape.lane(thread, r), box.column + shape.column(thread, r), each->from[r]});
            }
        for (const Word& word : words) memory.at(word.lane, word.column) = TMEM_POISON;
        carry_out(stores, [&memory, words] {
            for (const Word& word : words) memory.at(word.lane, word.column) = word.bits;
        });
    });
}

static void wait_for(std::shared_ptr<TmemAccesses> Warp::* kept, const char* name) {
    Nothing nothing;
    meet_warp(name, nothing, [kept](const auto&) {
        if (TmemAccesses* accesses = (machine->current->warp->*kept).get()) accesses->carry_out_all();
    });
}

void tcgen05_wait_ld() { wait_for(&Warp::tmem_loads, "tcgen05.wait::ld"); }
void tcgen05_wait_st() { wait_for(&Warp::tmem_stores, "tcgen05.wait::st"); }

void tcgen05_mma_f16(int ctas, u32 d, u32 a, u64 b, u32 idesc, bool accumulate) {
    check_issuer(ctas, "tcgen05.mma");
    BS_REQUIRE(d >> 16 == 0 && a >> 16 == 0, "tcgen05.mma with a TMEM lane that is not 0");
    Tcgen05Queue& queue = queue_of(*machine->current);
    const F16Mma mma{decode_f16_instruction(idesc, ctas), group_of(*machine->current->cta, ctas, "tcgen05.mma"), d, a,
                     decode_tcgen05(b), accumulate};
    mma.note(queue);
    machine->current->clock.own++;
    queue.add([mma] { mma.run(); });
}

}  // namespace bs::host
