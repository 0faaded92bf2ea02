// TMA for a pair of CTAs (sm_100, sm_103): bytes land in the CTA that loads, or in both, and are counted at an mbarrier
// that may be the peer's.
#pragma once
#include "ptx/tma.cuh"

namespace bs::ptx::tma {

// The address in the even CTA of the pair of what this CTA has at `address`: bit 24 of a shared::cluster address is the
// lowest bit of the rank.
BS_DEVICE u32 in_even_cta(u32 address) { return address & 0xFEFFFFFFu; }

// A box of a matrix to this CTA's shared memory; `barrier` is a shared::cluster address.
BS_DEVICE void load_pair(u32 to, const void* map, int column, int row, u32 barrier) {
    BS_PTX(tma_load_pair(to, map, {column, row}, barrier),
           "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2 [%0], "
           "[%1, {%2, %3}], [%4];" ::"r"(to),
           "l"(map), "r"(column), "r"(row), "r"(barrier)
           : "memory");
}

// The same of three dimensions.
BS_DEVICE void load_pair(u32 to, const void* map, int first, int second, int third, u32 barrier) {
    BS_PTX(tma_load_pair(to, map, {first, second, third}, barrier),
           "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2 [%0], "
           "[%1, {%2, %3, %4}], [%5];" ::"r"(to),
           "l"(map), "r"(first), "r"(second), "r"(third), "r"(barrier)
           : "memory");
}

// A box of three dimensions to the same place of every CTA that `ctas` has a bit for. Bytes that land in a CTA are
// counted at its own mbarrier or at its peer's: at the one whose rank is as even or odd as that of `barrier`.
BS_DEVICE void load_pair_multicast(u32 to, const void* map, int first, int second, int third, u32 barrier, u16 ctas) {
    BS_PTX(tma_load_pair_multicast(to, map, {first, second, third}, barrier, ctas),
           "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.cta_group::2 "
           "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
           "l"(map), "r"(first), "r"(second), "r"(third), "r"(barrier), "h"(ctas)
           : "memory");
}

}  // namespace bs::ptx::tma
