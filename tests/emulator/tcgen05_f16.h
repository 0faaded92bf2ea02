// tcgen05.mma of kind::f16 with its A operand in TMEM, decoded bit by bit as the PTX manual has it.
//
// Sums are rounded once for each instruction, as those of wgmma are here: hardware may do otherwise.
#pragma once
#include "tcgen05.h"
#include "warpgroup.h"

namespace bs::emulator {

struct F16Instruction {
    u32 m, n;
    bool is_bfloat16;
};

inline F16Instruction decode_f16_instruction(u32 word, int ctas) {
    const auto wrong = [word](const char* what) { return format("instruction descriptor %08x: %s", word, what); };
    const auto require = [&](bool so, const char* what) { BS_REQUIRE(so, "%s", wrong(what).c_str()); };
    require(!field(word, 0, 2), "sparse operands are not modelled");
    require(!field(word, 3, 3), "floats are not saturated");
    require(field(word, 4, 5) == 1, "sums of other types than float32 are not modelled");
    require(!field(word, 6, 6) && !field(word, 23, 23) && !field(word, 29, 29), "bits 6, 23 and 29 are zero");
    const u32 a = field(word, 7, 9), b = field(word, 10, 12);
    require(a <= 1 && b <= 1, "types of kind::f16 are 0 (float16) and 1 (bfloat16)");
    require(a == b, "operands of different types are not modelled");
    require(!field(word, 13, 14), "negated operands are not modelled");
    require(!field(word, 15, 16), "MN-major operands are not modelled");
    require(!field(word, 30, 31), "a shift is for .ws alone");
    const F16Instruction i{field(word, 24, 28) << 4, field(word, 17, 22) << 3, a == 1};
    BS_REQUIRE(i.m == 128u * u32(ctas), "instruction descriptor %08x: M is %u with %d CTAs", word, i.m, ctas);
    const u32 step = 16u * u32(ctas);
    BS_REQUIRE(i.n >= step && i.n <= 256 && i.n % step == 0, "instruction descriptor %08x: N is %u", word, i.n);
    return i;
}

// A lane of A is a row, a column two numbers along k; of a pair, each CTA's TMEM has its own rows.
struct F16Mma {
    static constexpr u32 K = 16, A_COLUMNS = K / 2;

    F16Instruction instruction;
    std::vector<Cta*> ctas;
    u32 d, a;  // TMEM columns
    MatrixDescriptor b;
    bool accumulates;

    u32 b_rows() const { return instruction.n / u32(ctas.size()); }

    void note(Tcgen05Queue& queue) const {
        const Accessor shared{queue.mma, queue.next(), &machine->current->clock, nullptr, true};
        const Accessor tmem = queue.accessor(queue.mma);
        const auto is_own = [&](const Stamp& stamp) { return queue.is_own(stamp); };
        for (Cta* cta : ctas) {
            for (u32 row = 0; row < b_rows(); row++)
                for (u32 byte = 0; byte < 2 * K; byte += 16)
                    cta->shared->note(b.k_major(row, byte), 16, false, shared, "tcgen05.mma");
            tmem_of(*cta).note(0, TMEM_LANES, a, A_COLUMNS, false, tmem, "tcgen05.mma", is_own);
            tmem_of(*cta).note(0, TMEM_LANES, d, instruction.n, true, tmem, "tcgen05.mma", is_own);
        }
    }

    void run() const {
        std::vector<double> right(instruction.n * K);
        for (u32 n = 0; n < instruction.n; n++)
            for (u32 k = 0; k < K; k++) {
                u16 bits;
                std::memcpy(&bits, ctas[n / b_rows()]->shared->at(b.k_major(n % b_rows(), 2 * k)), 2);
                right[n * K + k] = number_of(bits, 0, instruction.is_bfloat16);
            }
        for (Cta* cta : ctas)
            for (u32 lane = 0; lane < TMEM_LANES; lane++) {
                double left[K];
                for (u32 k = 0; k < K; k++)
                    left[k] = number_of(tmem_of(*cta).at(lane, a + k / 2), int(k % 2), instruction.is_bfloat16);
                for (u32 n = 0; n < instruction.n; n++) {
                    u32& word = tmem_of(*cta).at(lane, d + n);
                    double sum = accumulates ? host::float_of(word) : 0.0;
                    for (u32 k = 0; k < K; k++) sum += left[k] * right[n * K + k];
                    word = host::bits_of(float(sum));
                }
            }
    }
};

}  // namespace bs::emulator
