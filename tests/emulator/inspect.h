// Parts of the emulator that tests ask directly, outside of a launch.
#pragma once
#include "tcgen05_f16.h"

namespace bs::emulator {

// What went wrong in `ask`, or null.
template <class Ask>
const char* refusal_of(const Ask& ask) {
    static std::string last;
    try {
        ask();
    } catch (const std::runtime_error& error) {
        last = error.what();
        return last.c_str();
    }
    return nullptr;
}

}  // namespace bs::emulator

extern "C" {

// Where byte `byte` of row `row` lies by a matrix descriptor of wgmma or tcgen05.
const char* inspect_descriptor(bs::u64 descriptor, int is_tcgen05, int row, int byte, bs::u32* address) {
    using namespace bs::emulator;
    return refusal_of([&] {
        const MatrixDescriptor m = is_tcgen05 ? decode_tcgen05(descriptor) : decode_wgmma(descriptor);
        *address = m.k_major(bs::u32(row), bs::u32(byte));
    });
}

// m, n, types of a, b and scales, ids of the scales of a and b.
const char* inspect_instruction(int kind, bs::u32 word, int ctas, int* facts) {
    using namespace bs::emulator;
    return refusal_of([&] {
        const Instruction i = decode_instruction(MmaKind(kind), word, ctas);
        const int found[] = {int(i.m), int(i.n), int(i.a), int(i.b), int(i.scale), int(i.a_byte), int(i.b_byte)};
        std::copy(std::begin(found), std::end(found), facts);
    });
}

// m, n and whether operands are bfloat16, of a product of kind::f16.
const char* inspect_f16_instruction(bs::u32 word, int ctas, int* facts) {
    using namespace bs::emulator;
    return refusal_of([&] {
        const F16Instruction i = decode_f16_instruction(word, ctas);
        facts[0] = int(i.m), facts[1] = int(i.n), facts[2] = i.is_bfloat16;
    });
}

// One output of a block-scaled product, of codes.
float inspect_sum(int is_packed, int a_type, int b_type, int scale_type, float c, const bs::u8* a, const bs::u8* b,
                  const bs::u8* a_scales, const bs::u8* b_scales) {
    using namespace bs::emulator;
    Term left[64], right[64], of_a[4], of_b[4];
    for (int k = 0; k < (is_packed ? 64 : 32); k++)
        left[k] = term_of(Small(a_type), a[k]), right[k] = term_of(Small(b_type), b[k]);
    for (int i = 0; i < (is_packed ? 4 : 1); i++)
        of_a[i] = term_of(Small(scale_type), a_scales[i]), of_b[i] = term_of(Small(scale_type), b_scales[i]);
    return is_packed ? add_scaled_64(c, left, right, of_a, of_b) : add_scaled_32(c, left, right, of_a[0], of_b[0]);
}
}
