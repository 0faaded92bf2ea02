// Scale decoders of the GEMMs, over words of four codes.
#include "decode/scales.cuh"

using namespace bs;

template <class Decode>
static void each(const u32* words, int count, float* out, const Decode& decode) {
    for (int i = 0; i < count; i++) {
        float s[4];
        decode(s, words[i]);
        for (int j = 0; j < 4; j++) out[4 * i + j] = s[j];
    }
}

extern "C" void ue4m3(const u32* words, int count, float* out) {
    each(words, count, out, decode::ScaleDecoder<decode::UE4M3>::four);
}
extern "C" void e8m0(const u32* words, int count, float* out) {
    each(words, count, out, decode::ScaleDecoder<decode::E8M0>::four);
}
extern "C" void e8m0_by_conversion(const u32* words, int count, float* out) {
    each(words, count, out, decode::ScaleDecoder<decode::E8M0>::by_conversion);
}
extern "C" void e4m4(const u32* words, int count, float* out) {
    each(words, count, out, decode::ScaleDecoder<decode::E4M4>::four);
}
