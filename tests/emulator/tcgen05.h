// tcgen05.mma and tcgen05.cp: instructions decoded bit by bit, carried out in the order in which a thread issued them.
//
// Ordered without waiting, for one thread: cp before mma, mma before mma. A cp that overwrites scales which an mma before
// it still reads is not (PTX manual, tcgen05 memory consistency), and is reported.
#pragma once
#include <optional>
#include "block_scale.h"
#include "matrix_descriptor.h"
#include "mbarrier.h"
#include "tmem.h"

namespace bs::emulator {

enum class MmaKind { MXF8F6F4, MXF4, MXF4NVF4 };

struct Instruction {
    MmaKind kind;
    u32 m, n;
    Small a, b, scale;
    bool negates_a, negates_b;
    u32 a_byte, b_byte;  // of the scales that it begins with

    bool is_packed() const { return kind != MmaKind::MXF8F6F4; }
    int k() const { return is_packed() ? 64 : 32; }
    int scales() const { return kind == MmaKind::MXF8F6F4 ? 1 : kind == MmaKind::MXF4 ? 2 : 4; }
};

inline u32 field(u32 word, int first, int last) { return word >> first & ((1u << (last - first + 1)) - 1); }

inline Small type_of(MmaKind kind, u32 code, u32 word) {
    if (kind != MmaKind::MXF8F6F4) {
        BS_REQUIRE(code == 1, "instruction descriptor %08x: packed e2m1 is type 1, not %u", word, code);
        return Small::E2M1;
    }
    static constexpr Small TYPES[] = {Small::E4M3, Small::E5M2, Small::E5M2, Small::E2M3, Small::E3M2, Small::E2M1};
    BS_REQUIRE(code != 2 && code < 6, "instruction descriptor %08x: %u is no type", word, code);
    return TYPES[code];
}

inline Instruction decode_instruction(MmaKind kind, u32 word, int ctas) {
    Instruction i{};
    i.kind = kind;
    BS_REQUIRE(!field(word, 0, 3) && !field(word, 6, 6), "instruction descriptor %08x: bits 0 to 3 and 6 are zero", word);
    i.a = type_of(kind, field(word, 7, 9), word), i.b = type_of(kind, field(word, 10, 12), word);
    i.negates_a = field(word, 13, 13), i.negates_b = field(word, 14, 14);
    BS_REQUIRE(!field(word, 15, 16), "instruction descriptor %08x: MN-major operands are not modelled", word);
    i.n = field(word, 17, 22) << 3, i.m = field(word, 24, 28) << 4;
    i.scale = field(word, 23, 23) ? Small::UE8M0 : Small::UE4M3;
    BS_REQUIRE(kind == MmaKind::MXF4NVF4 || i.scale == Small::UE8M0, "instruction descriptor %08x: scales of this kind are ue8m0",
               word);
    i.b_byte = field(word, 4, 5), i.a_byte = field(word, 29, 30);
    const u32 step = u32(i.scales());
    BS_REQUIRE(i.a_byte % step == 0 && i.b_byte % step == 0, "instruction descriptor %08x: scale ids %u and %u of %u scales",
               word, i.a_byte, i.b_byte, step);
    BS_REQUIRE(!field(word, 31, 31), "instruction descriptor %08x: k = 96 is not modelled", word);
    BS_REQUIRE(i.m == 128u * u32(ctas), "instruction descriptor %08x: M is %u with %d CTAs", word, i.m, ctas);
    BS_REQUIRE(i.n >= 8u * u32(ctas) && i.n <= 256 && i.n % (8 * u32(ctas)) == 0, "instruction descriptor %08x: N is %u", word,
               i.n);
    return i;
}

// The CTAs that an instruction of cta_group::1 or ::2 works for, by their place in the pair.
inline std::vector<Cta*> group_of(Cta& cta, int ctas, const char* name) {
    if (ctas == 1) return {&cta};
    auto& all = cta.cluster->ctas;
    const size_t even = size_t(cta.rank) & ~size_t(1);
    BS_REQUIRE(even + 1 < all.size(), "%s with cta_group::2 in a cluster of %zu", name, all.size());
    BS_REQUIRE(all[even]->living && all[even + 1]->living, "%s with cta_group::2, where the peer has ended", name);
    return {all[even].get(), all[even + 1].get()};
}

inline Tmem& tmem_of(Cta& cta) {
    if (!cta.tmem) cta.tmem = std::make_shared<Tmem>();
    return *cta.tmem;
}

enum class Keep { NO, FILL, LAST_USE };  // what collector::a says

// What one thread has issued. Both agents count the same numbers.
struct Tcgen05Queue {
    Thread& thread;
    uint32_t mma, cp;
    std::optional<u64> kept;  // the descriptor of the matrix A in the collector buffer
    std::vector<std::function<void()>> operations;
    size_t done = 0;

    explicit Tcgen05Queue(Thread& thread) : thread(thread) {
        mma = machine->add_agent("tcgen05.mma of " + thread.name(), true);
        cp = machine->add_agent("tcgen05.cp of " + thread.name(), true);
    }
    u32 next() const { return u32(operations.size()) + 1; }
    Accessor accessor(uint32_t agent) const { return {agent, next(), nullptr, thread.tmem_view.get(), true}; }
    bool is_own(const Stamp& stamp) const { return stamp.agent == mma || stamp.agent == cp; }

    // A matrix may be taken from the collector buffer where the instruction before has filled it with the same one.
    void keep(Keep how, u64 a) {
        BS_REQUIRE(how != Keep::LAST_USE || kept == a, "tcgen05.mma with collector::a::lastuse of a matrix that the "
                   "instruction before has not left in the collector buffer");
        kept = how == Keep::FILL ? std::optional<u64>(a) : std::nullopt;
    }

    void add(std::function<void()> operation) {
        operations.push_back(std::move(operation));
        if (machine->is_early()) run_until(operations.size());
    }
    void run_until(size_t end) {
        for (; done < end; done++) operations[done]();
    }
};

inline Tcgen05Queue& queue_of(Thread& thread) {
    if (!thread.tcgen05) thread.tcgen05 = std::make_shared<Tcgen05Queue>(thread);
    return *thread.tcgen05;
}

struct Mma {
    Instruction instruction;
    std::vector<Cta*> ctas;
    MatrixDescriptor a, b;
    u32 d, a_scale, b_scale;  // TMEM addresses
    bool accumulates;

    u32 column(u32 address) const { return address & 0xffff; }
    u32 b_rows() const { return instruction.n / u32(ctas.size()); }

    void note_operand(Cta& cta, const MatrixDescriptor& at, u32 rows, const Accessor& by) const {
        for (u32 row = 0; row < rows; row++)
            for (u32 byte = 0; byte < 32; byte += 16) cta.shared->note(at.k_major(row, byte), 16, false, by, "tcgen05.mma");
    }

    void note(Tcgen05Queue& queue) const {
        const Clock& clock = machine->current->clock;
        const Accessor shared{queue.mma, queue.next(), &clock, nullptr, true}, tmem = queue.accessor(queue.mma);
        const auto is_own = [&](const Stamp& stamp) { return queue.is_own(stamp); };
        for (Cta* cta : ctas) {
            note_operand(*cta, a, 128, shared);
            note_operand(*cta, b, b_rows(), shared);
            Tmem& memory = tmem_of(*cta);
            memory.note(0, TMEM_LANES, column(a_scale), 4, false, tmem, "tcgen05.mma", is_own);
            memory.note(0, TMEM_LANES, column(b_scale), (instruction.n + 31) / 32, false, tmem, "tcgen05.mma", is_own);
            memory.note(0, TMEM_LANES, column(d), instruction.n, true, tmem, "tcgen05.mma", is_own);
        }
    }

    void load_row(std::vector<Term>& to, const Cta& cta, const MatrixDescriptor& at, u32 row, Small type, bool negates) const {
        u8 bytes[32];
        for (u32 byte = 0; byte < 32; byte += 16)
            std::memcpy(bytes + byte, cta.shared->at(at.k_major(row, byte)), 16);
        const int bits = bits_of(type);
        for (int k = 0; k < instruction.k(); k++) {
            // Packed kinds have no gaps; else 16 elements begin every 16 bytes.
            const int bit = instruction.is_packed() ? 4 * k : 128 * (k / 16) + bits * (k % 16);
            const u32 two = u32(bytes[bit / 8] | (bit / 8 + 1 < 32 ? bytes[bit / 8 + 1] << 8 : 0));
            to[size_t(k)] = term_of(type, two >> bit % 8 & ((1u << bits) - 1));
            if (negates) to[size_t(k)].significand = -to[size_t(k)].significand;
        }
    }

    // The scales of a row for each 16 (packed kinds) or for all, as the datapath of this quadrant finds them.
    void load_scales(Term (&to)[4], Tmem& memory, u32 address, u32 row, u32 byte, u32 quadrant) const {
        const u32 word = memory.at(QUADRANT * quadrant + row % 32, column(address) + row / 32);
        const int scales = instruction.scales();
        for (int i = 0; i < 4; i++)
            to[i] = term_of(instruction.scale, word >> 8 * (byte + u32(i * scales / 4)) & 0xff);
    }

    void run() const {
        const Instruction& i = instruction;
        std::vector<std::vector<Term>> right(i.n, std::vector<Term>(size_t(i.k())));
        for (u32 n = 0; n < i.n; n++) load_row(right[n], *ctas[n / b_rows()], b, n % b_rows(), i.b, i.negates_b);
        std::vector<Term> left(static_cast<size_t>(i.k()));
        for (Cta* cta : ctas) {
            Tmem& memory = tmem_of(*cta);
            for (u32 lane = 0; lane < TMEM_LANES; lane++) {
                const u32 quadrant = lane / QUADRANT;
                Term a_scales[4], b_scales[4];
                load_row(left, *cta, a, lane, i.a, i.negates_a);
                load_scales(a_scales, memory, a_scale, lane, i.a_byte, quadrant);
                for (u32 n = 0; n < i.n; n++) {
                    load_scales(b_scales, memory, b_scale, n, i.b_byte, quadrant);
                    u32& sum = memory.at(lane, column(d) + n);
                    const float c = accumulates ? host::float_of(sum) : 0.0f;
                    sum = host::bits_of(i.is_packed() ? add_scaled_64(c, left.data(), right[n].data(), a_scales, b_scales)
                                                      : add_scaled_32(c, left.data(), right[n].data(), a_scales[0],
                                                                      b_scales[0]));
                }
            }
        }
    }
};

// 32 rows of 16 bytes to four columns of every quadrant, in each CTA from its own shared memory.
struct ScaleCopy {
    std::vector<Cta*> ctas;
    MatrixDescriptor from;
    u32 column;

    void note(Tcgen05Queue& queue) const {
        const Accessor shared{queue.cp, queue.next(), &machine->current->clock, nullptr, true};
        const Accessor tmem = queue.accessor(queue.cp);
        for (Cta* cta : ctas) {
            for (u32 row = 0; row < 32; row++)
                cta->shared->note(from.k_major(row, 0), 16, false, shared, "tcgen05.cp");
            tmem_of(*cta).note(0, TMEM_LANES, column, 4, true, tmem, "tcgen05.cp",
                               [&](const Stamp& stamp) { return stamp.agent == queue.cp; });
        }
    }
    void run() const {
        for (Cta* cta : ctas)
            for (u32 row = 0; row < 32; row++) {
                u32 words[4];
                std::memcpy(words, cta->shared->at(from.k_major(row, 0)), 16);
                for (u32 quadrant = 0; quadrant < 4; quadrant++)
                    for (u32 i = 0; i < 4; i++) tmem_of(*cta).at(QUADRANT * quadrant + row, column + i) = words[i];
            }
    }
};

// tcgen05.ld or tcgen05.st of a warp: registers, or TMEM, that hold NaN until they are waited for.
struct TmemAccesses {
    uint32_t agent;
    u32 issued = 0, waited = 0;
    std::vector<std::function<void()>> pending;

    void carry_out_all() {
        for (auto& each : pending) each();
        pending.clear();
        waited = issued;
    }
};

}  // namespace bs::emulator
