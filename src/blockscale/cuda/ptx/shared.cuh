// Shared memory by its 32-bit address, which most instructions take.
#pragma once
#include "base.cuh"

namespace bs::ptx {

#ifdef __CUDACC__
BS_DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// The shared memory whose size the launch gives.
BS_DEVICE u8* dynamic_shared() {
    extern __shared__ __align__(128) u8 memory[];
    return memory;
}
#else
BS_DEVICE u32 shared_address(const void* pointer) { return host::shared_address(pointer); }
BS_DEVICE u8* dynamic_shared() { return host::dynamic_shared(); }
#endif

// Neighbouring words, by as few loads as their number allows.
template <int COUNT>
BS_DEVICE void load_shared(u32 (&words)[COUNT], u32 from) {
    constexpr int WIDTH = COUNT % 4 == 0 ? 4 : COUNT % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH)
        if constexpr (WIDTH == 4)
            BS_PTX(load_shared(&words[i], from + 4 * i, 16),
                   "ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                   : "r"(from + 4 * i));
        else if constexpr (WIDTH == 2)
            BS_PTX(load_shared(&words[i], from + 4 * i, 8),
                   "ld.shared.v2.u32 {%0,%1}, [%2];"
                   : "=r"(words[i]), "=r"(words[i + 1])
                   : "r"(from + 4 * i));
        else
            BS_PTX(load_shared(&words[i], from + 4 * i, 4), "ld.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"(from + 4 * i));
}

// One or two words of a table: the compiler may move the load to where its value is used.
BS_DEVICE void load_table(u32 (&words)[1], u32 from) {
    BS_PTX_PURE(load_shared(words, from, 4), "ld.shared.u32 %0, [%1];" : "=r"(words[0]) : "r"(from));
}
BS_DEVICE void load_table(u32 (&words)[2], u32 from) {
    BS_PTX_PURE(load_shared(words, from, 8), "ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(from));
}

BS_DEVICE void store_shared(u32 to, u32 a, u32 b, u32 c, u32 d) {
    BS_PTX(store_shared(to, make_uint4(a, b, c, d)),
           "st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

BS_DEVICE void store_shared(u32 to, u32 a, u32 b) {
    BS_PTX(store_shared(to, make_uint2(a, b)), "st.shared.v2.u32 [%0], {%1,%2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}

// Some warps of the CTA wait for each other at named barrier `barrier`.
BS_DEVICE void bar_sync(int barrier, int threads) {
    BS_PTX(bar_sync(barrier, threads), "bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace bs::ptx
