// Block-scaled products, bit for bit as sm_100 and sm_120 were found to compute them (MMA-Sim, arXiv 2511.10909): terms are
// aligned to the largest exponent, cut toward zero to a number of fraction bits, added exactly, and the sum is cut toward
// zero to float32.
#pragma once
#include <climits>

#include "machine.h"

namespace bs::emulator {

// significand * 2^(exponent - fraction); not normalised.
struct Term {
    long long significand = 0;
    int exponent = 0, fraction = 0;
    bool is_nan = false;
};

enum class Small { E4M3, E5M2, E2M3, E3M2, E2M1, UE4M3, UE8M0 };

struct SmallFormat {
    int exponent_bits, mantissa_bits, bias;
};
constexpr SmallFormat SMALL_FORMATS[] = {{4, 3, 7}, {5, 2, 15}, {2, 3, 1}, {3, 2, 3}, {2, 1, 1}, {4, 3, 7}, {8, 0, 127}};

inline int bits_of(Small kind) {
    const SmallFormat& f = SMALL_FORMATS[int(kind)];
    return 1 + f.exponent_bits + f.mantissa_bits;
}

inline Term term_of(Small kind, u32 code) {
    const auto [exponent_bits, mantissa_bits, bias] = SMALL_FORMATS[int(kind)];
    if (kind == Small::UE8M0) return {1, int(code) - bias, 0, code == 0xff};
    const u32 size = code & ((1u << (exponent_bits + mantissa_bits)) - 1);  // of ue4m3 the sign is ignored
    const bool negative = kind != Small::UE4M3 && code >> (exponent_bits + mantissa_bits) & 1;
    const int field = int(size >> mantissa_bits), mantissa = int(size & ((1u << mantissa_bits) - 1));
    Term term;
    term.is_nan = kind == Small::E5M2 ? field == 31 : (kind == Small::E4M3 || kind == Small::UE4M3) && size == 0x7f;
    term.exponent = (field ? field : 1) - bias;
    term.fraction = mantissa_bits;
    term.significand = (field ? 1 << mantissa_bits : 0) | mantissa;
    if (negative) term.significand = -term.significand;
    return term;
}

inline Term term_of(float value) {
    const u32 bits = host::bits_of(value), field = bits >> 23 & 0xff;
    Term term{(field ? 1 << 23 : 0) | int(bits & 0x7fffff), int(field ? field : 1) - 127, 23, field == 0xff};
    if (bits >> 31) term.significand = -term.significand;
    return term;
}

inline Term times(const Term& a, const Term& b) {
    return {a.significand * b.significand, a.exponent + b.exponent, a.fraction + b.fraction, a.is_nan || b.is_nan};
}

constexpr u32 RESULT_NAN = 0x7fffffff;

inline float cut_to_float(__int128 sum, int exponent, int fraction) {
    if (sum == 0) return 0.0f;
    unsigned __int128 size = sum < 0 ? -sum : sum;
    int top = 0;
    for (unsigned __int128 rest = size; rest >>= 1;) top++;
    const int power = top + exponent - fraction;            // of the leading bit
    const int lowest = std::max(power - 23, -149);          // of the last bit that is kept
    const int shift = lowest - (exponent - fraction);
    size = shift >= 0 ? (shift > 127 ? 0 : size >> shift) : size << -shift;
    const double value = std::ldexp(double((unsigned long long)(size)), lowest);
    return float(sum < 0 ? -value : value);
}

template <size_t COUNT>
float sum_of_terms(const Term (&terms)[COUNT], int kept) {
    int largest = INT_MIN;
    for (const Term& term : terms) {
        if (term.is_nan) return host::float_of(RESULT_NAN);
        if (term.significand) largest = std::max(largest, term.exponent);
    }
    if (largest == INT_MIN) return 0.0f;
    __int128 sum = 0;
    for (const Term& term : terms) {
        const int shift = kept - term.fraction - (largest - term.exponent);
        const __int128 size = term.significand < 0 ? -term.significand : term.significand;
        const __int128 cut = shift >= 0 ? size << shift : shift < -62 ? 0 : size >> -shift;
        sum += term.significand < 0 ? -cut : cut;
    }
    return cut_to_float(sum, largest, kept);
}

// c + sum over k of a b with one scale for all: kind mxf8f6f4.
inline float add_scaled_32(float c, const Term* a, const Term* b, const Term& a_scale, const Term& b_scale) {
    Term terms[33] = {term_of(c)};
    const Term scale = times(a_scale, b_scale);
    for (int k = 0; k < 32; k++) terms[1 + k] = times(times(a[k], b[k]), scale);
    return sum_of_terms(terms, 25);
}

// c + sum over k of a b, e2m1, with a scale for each 16: kinds mxf4 and mxf4nvf4.
inline float add_scaled_64(float c, const Term* a, const Term* b, const Term* a_scales, const Term* b_scales) {
    Term terms[5] = {term_of(c)};
    for (int group = 0; group < 4; group++) {
        long long quarters = 0;
        for (int k = 16 * group; k < 16 * group + 16; k++) {
            const Term product = times(a[k], b[k]);  // exponents of e2m1 are 0 to 2
            quarters += product.significand << product.exponent;
        }
        terms[1 + group] = times(Term{quarters, 0, 2, false}, times(a_scales[group], b_scales[group]));
    }
    return sum_of_terms(terms, 35);
}

}  // namespace bs::emulator
