// The numbers of a block that a lane holds, some at a time.
//
// A search goes through them for every group of scales. Where they are in registers, each has instructions of its own,
// more than the instruction cache holds beside those of other warps (the profiler counted two cycles of waiting for
// each). In shared memory a loop finds them, and they leave registers to more warps.
#pragma once
#include "lanes.cuh"

template <int VALUES, bool IN_MEMORY>
class LaneNumbers {
 public:
    static constexpr int RUN = 8;

    // Of a warp. With 4 more to a lane, lanes that are served together do not meet at a bank.
    struct Memory {
        struct alignas(16) Four {
            float of[4];
        };
        Four fours[IN_MEMORY ? LANES_OF_WARP : 1][IN_MEMORY ? VALUES / 4 + 1 : 1];
    };

    EXACT LaneNumbers(const float (&x)[VALUES], Memory& memory)
        : x_(x), fours_(memory.fours[IN_MEMORY ? lane_number() : 0]) {
        if constexpr (IN_MEMORY)
#pragma unroll
            for (int i = 0; i < VALUES / 4; ++i) fours_[i] = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
    }

    // work(x, first): for each run, from number `first` on.
    template <class Work>
    EXACT void for_runs(const Work& work) const {
        if constexpr (IN_MEMORY) {
#pragma unroll 1
            for (int first = 0; first < VALUES; first += RUN) run(first, work);
        } else {
#pragma unroll
            for (int first = 0; first < VALUES; first += RUN) run(first, work);
        }
    }

    // The sum of term(x, i) over all numbers: of neighbours first.
    template <class Term>
    EXACT double sum_of(const Term& term) const {
        constexpr int RUNS = VALUES / RUN;
        double sums[RUNS];
        for_runs([&](const float (&x)[RUN], int first) {
            double terms[RUN];
#pragma unroll
            for (int i = 0; i < RUN; ++i) terms[i] = term(x[i], first + i);
#pragma unroll
            for (int i = 1; i < RUNS; ++i) sums[i - 1] = sums[i];  // moved on: a loop has no place for the i-th
            sums[RUNS - 1] = sum_of_all(terms);
        });
        return sum_of_all(sums);
    }

 private:
    template <class Work>
    EXACT void run(int first, const Work& work) const {
        float x[RUN];
#pragma unroll
        for (int i = 0; i < RUN; i += 4) {
            const auto four = IN_MEMORY ? fours_[(first + i) / 4] : Four{x_[first + i], x_[first + i + 1], x_[first + i + 2], x_[first + i + 3]};
#pragma unroll
            for (int j = 0; j < 4; ++j) x[i + j] = four.of[j];
        }
        work(x, first);
    }

    template <int COUNT>
    static EXACT double sum_of_all(double (&terms)[COUNT]) {
#pragma unroll
        for (int step = 1; step < COUNT; step *= 2)
#pragma unroll
            for (int i = 0; i < COUNT; i += 2 * step) terms[i] = sum(terms[i], terms[i + step]);
        return terms[0];
    }

    using Four = typename Memory::Four;
    const float (&x_)[VALUES];
    Four* const fours_;
};
