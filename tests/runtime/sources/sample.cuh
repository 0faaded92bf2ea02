#pragma once
#include "deeper.cuh"

struct Arguments {
    float* out;  // [128]
    const unsigned* in;  // [128]
};
