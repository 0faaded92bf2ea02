// wgmma: products of a warpgroup, A in registers and B in shared memory.
//
// Each warp issues, commits and waits on its own; a product runs when all four warps have issued it. Until its group has
// been waited for, the registers of its sums hold NaN where products run late.
#pragma once
#include "copies.h"
#include "matrix_descriptor.h"

namespace bs::emulator {

constexpr int K = 16;  // of a product

struct WgmmaPart {
    float* d;
    u32 a[4];
};

struct Wgmma {
    int n = 0;
    bool is_bfloat16 = false;
    u64 b = 0;
    bool branch = false;  // that its first warp has taken
    unsigned warps = 0;   // that have issued it
    std::vector<WgmmaPart> parts = std::vector<WgmmaPart>(128);
    Gathering known;
};

// The sums of a lane that products in flight add to.
struct Accumulator {
    std::vector<float> sums;
    size_t last = 0;  // product that adds to it, counted from the first of the warpgroup
};

struct Warpgroup {
    Cta& cta;
    uint32_t agent;
    std::vector<std::unique_ptr<Wgmma>> products;
    struct OfWarp {
        size_t issued = 0;           // products
        std::vector<size_t> groups;  // where each ends
        bool is_fenced = false;
        bool branch = false;  // taken last
        std::map<float*, Accumulator> sums;
    } warps[4];
    size_t done = 0;  // products
    Waiters waiters;

    Warpgroup(Cta& cta, unsigned index) : cta(cta) {
        agent = machine->add_agent(format("wgmma of warpgroup %u of %s", index, cta.name().c_str()), true);
    }

    void issue(unsigned warp, const std::vector<WgmmaPart*>& lanes, int n, u64 b, bool is_bfloat16);
    void run_until(size_t end);
    void run(Wgmma& product);
    void deliver(unsigned warp, size_t end);
};

inline std::unique_ptr<Warpgroup> make_warpgroup(Cta& cta, unsigned index) {
    return std::make_unique<Warpgroup>(cta, index);
}

inline float number_of(u32 word, int half, bool is_bfloat16) {
    const u32 bits = word >> 16 * half & 0xffff;
    return is_bfloat16 ? host::float_of(bits << 16) : host::from_float16(bits);
}

inline void Warpgroup::issue(unsigned warp, const std::vector<WgmmaPart*>& lanes, int n, u64 b, bool is_bfloat16) {
    OfWarp& own = warps[warp];
    BS_REQUIRE(own.is_fenced, "wgmma without wgmma.fence since the last group was committed");
    const size_t number = own.issued++;
    if (number == products.size()) products.push_back(std::make_unique<Wgmma>());
    Wgmma& product = *products[number];
    if (!product.warps) product.n = n, product.b = b, product.is_bfloat16 = is_bfloat16, product.branch = own.branch;
    BS_REQUIRE(product.branch == own.branch, "wgmma: warps of a warpgroup have taken different branches");
    BS_REQUIRE(product.b == b && product.n == n && product.is_bfloat16 == is_bfloat16,
               "wgmma: warps of a warpgroup give different shapes or descriptors, %016llx and %016llx", product.b, b);
    for (int lane = 0; lane < 32; lane++) {
        product.parts[32 * warp + lane] = *lanes[lane];
        float* d = lanes[lane]->d;
        Accumulator& sums = own.sums[d];
        if (sums.sums.empty()) {
            sums.sums.assign(d, d + n / 2);
            std::memset(d, POISON, sizeof(float) * n / 2);
        }
        sums.last = number;
        product.known.add(cta.threads[32 * (4 * (machine->current->index / 128) + warp) + lane]->clock);
    }
    if (++product.warps < 4) return;
    // Shared memory is read from now on.
    const KnownRef known = product.known.known();
    const Accessor by{agent, u32(number) + 1, nullptr, known.get(), true};
    const MatrixDescriptor at = decode_wgmma(b);
    for (int row = 0; row < n; row++)
        for (u32 byte = 0; byte < 2 * K; byte += 16)
            cta.shared->note(at.k_major(u32(row), byte), 16, false, by, "wgmma");
    if (machine->is_early()) run_until(number + 1);
    machine->wake(waiters);
}

inline void Warpgroup::run(Wgmma& product) {
    const MatrixDescriptor at = decode_wgmma(product.b);
    std::vector<double> b(size_t(product.n) * K);
    for (int row = 0; row < product.n; row++)
        for (int k = 0; k < K; k++) {
            u16 bits;
            std::memcpy(&bits, cta.shared->at(at.k_major(u32(row), 2 * u32(k))), 2);
            b[size_t(row) * K + k] = number_of(bits, 0, product.is_bfloat16);
        }
    for (int row = 0; row < 64; row++) {
        const int warp = row / 16, g = row % 8, below = row % 16 / 8;
        double a[K];
        for (int k = 0; k < K; k++) {
            const u32 word = product.parts[32 * warp + 4 * g + k % 8 / 2].a[below + 2 * (k / 8)];
            a[k] = number_of(word, k % 2, product.is_bfloat16);
        }
        for (int t = 0; t < 4; t++) {
            float* sums = warps[warp].sums.at(product.parts[32 * warp + 4 * g + t].d).sums.data();
            for (int n = 2 * t; n < product.n; n += n % 2 ? 7 : 1) {
                float& sum = sums[n / 8 * 4 + 2 * below + n % 2];
                double all = sum;
                for (int k = 0; k < K; k++) all += a[k] * b[size_t(n) * K + k];
                sum = float(all);
            }
        }
    }
}

inline void Warpgroup::run_until(size_t end) {
    for (; done < end; done++) {
        run(*products[done]);
        for (unsigned warp = 0; warp < 4; warp++)
            if (machine->launch.timing != LATEST) deliver(warp, done + 1);
    }
}

// Sums that no later product adds to go to their registers.
inline void Warpgroup::deliver(unsigned warp, size_t end) {
    for (auto each = warps[warp].sums.begin(); each != warps[warp].sums.end();)
        if (each->second.last < end) {
            std::memcpy(each->first, each->second.sums.data(), sizeof(float) * each->second.sums.size());
            each = warps[warp].sums.erase(each);
        } else {
            ++each;
        }
}

}  // namespace bs::emulator
