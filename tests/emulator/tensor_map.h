// Tensor maps: what cuTensorMapEncodeTiled is told, kept in the 128 bytes of a CUtensorMap in a form of our own, and the
// boxes that bulk tensor copies move by it.
#pragma once
#include <cstdint>

#include "mbarrier.h"

namespace bs::emulator {

struct TensorMapFacts {
    u32 magic;
    u8 type, rank, swizzle, fills_nan;
    const u8* address;
    u64 sizes[5];    // elements
    u64 strides[4];  // bytes, of all dimensions but the first
    u16 box[5];
};
static_assert(sizeof(TensorMapFacts) <= 128, "a CUtensorMap");
constexpr u32 MAGIC = 0x70616d74;

// Elements of a byte that CU_TENSOR_MAP_DATA_TYPE_* names: of 4 and 6 bits by the 16.
enum : u8 { PACKED_4 = 13, SPREAD_4 = 14, SPREAD_6 = 15 };
constexpr int TYPE_BITS[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
constexpr u32 SWIZZLES[] = {0, 32, 64, 128};

// Why the driver would refuse, or null.
inline const char* refusal(int type, u32 rank, const void* address, const u64* sizes, const u64* strides, const u32* box,
                           const u32* element_strides, int interleave, int swizzle) {
    if (type < 0 || type > SPREAD_6) return "an unknown data type";
    if (rank < 1 || rank > 5) return "a rank that is not 1 to 5";
    const bool is_spread = type == SPREAD_4 || type == SPREAD_6;
    if (reinterpret_cast<uintptr_t>(address) % (is_spread ? 32 : 16)) return "an address that is not aligned";
    if (interleave) return "interleaving, which is not modelled";
    if (swizzle < 0 || swizzle > 3) return "a swizzle that is not modelled";
    for (u32 i = 0; i < rank; i++) {
        if (sizes[i] < 1 || sizes[i] > 1ull << 32) return "a size that is not 1 to 2^32";
        if (box[i] < 1 || box[i] > 256) return "a box that is not 1 to 256";
        if (element_strides[i] != 1) return "element strides, which are not modelled";
        if (i && (strides[i - 1] % (is_spread ? 32 : 16) || strides[i - 1] >= 1ull << 40)) return "a stride that is not aligned";
    }
    if (is_spread) {
        if (sizes[0] % 128 || box[0] != 128) return "spread elements in other boxes than 128";
        if (swizzle != 0 && swizzle != 3) return "spread elements with a swizzle that is not of 128 bytes";
        return nullptr;
    }
    const u32 inner = box[0] * u32(TYPE_BITS[type]) / 8;
    if (inner % 16) return "a box whose rows are no multiple of 16 bytes";
    if (swizzle && inner > SWIZZLES[swizzle]) return "a box whose rows are longer than the swizzle";
    if (type == PACKED_4 && sizes[0] % 2) return "an odd number of 4-bit elements";
    return nullptr;
}

inline const TensorMapFacts& facts_of(const void* map) {
    const auto& facts = *static_cast<const TensorMapFacts*>(map);
    BS_REQUIRE(facts.magic == MAGIC, "a bulk tensor copy by something that is no tensor map");
    BS_REQUIRE(reinterpret_cast<uintptr_t>(map) % 64 == 0, "a tensor map whose address is no multiple of 64");
    return facts;
}

// One box: where its bytes lie in shared memory and in global memory.
struct Box {
    TensorMapFacts facts;
    long long first[5];  // coordinates
    u32 piece_bytes;     // that are moved at a time: one element, or 16 spread ones
    u32 piece_slots;     // bytes of shared memory that they take
    u32 row_pieces;

    Box(const void* map, std::initializer_list<int> coordinates) : facts(facts_of(map)) {
        BS_REQUIRE(facts.rank == coordinates.size(), "a bulk tensor copy with %zu coordinates by a map of rank %d",
                   coordinates.size(), facts.rank);
        std::copy(coordinates.begin(), coordinates.end(), first);
        const bool is_spread = facts.type == SPREAD_4 || facts.type == SPREAD_6;
        const int elements = is_spread ? 16 : facts.type == PACKED_4 ? 2 : 1;
        piece_bytes = u32(elements * TYPE_BITS[facts.type] / 8);
        piece_slots = is_spread ? 16 : piece_bytes;
        row_pieces = u32(facts.box[0]) / u32(elements);
        BS_REQUIRE(first[0] % (is_spread ? 128 : elements) == 0, "a coordinate %lld inside a packed piece", first[0]);
        per_piece = elements;
        // An H200 ends such a copy with an illegal instruction.
        BS_REQUIRE(first[0] / elements * piece_bytes % 16 == 0 || is_spread,
                   "a bulk tensor copy that begins at element %lld of a row, which is no multiple of 16 bytes", first[0]);
    }

    u32 rows() const {
        u32 all = 1;
        for (int i = 1; i < facts.rank; i++) all *= facts.box[i];
        return all;
    }
    u32 slot_bytes() const { return rows() * row_pieces * piece_slots; }      // of shared memory
    u32 counted_bytes() const { return rows() * row_pieces * piece_bytes; }  // by the mbarrier

    u32 offset_of(u32 base, u32 row, u32 piece) const {
        const u32 at = base + (row * row_pieces + piece) * piece_slots;
        if (!facts.swizzle) return at;
        const u32 pieces = SWIZZLES[facts.swizzle] / 16;
        return at ^ (at >> 7 & (pieces - 1)) << 4;
    }

    // Null where the tensor has ended or not begun.
    const u8* source_of(u32 row, u32 piece) const {
        const long long at = first[0] + (long long)(piece) * per_piece;
        if (at < 0 || u64(at) >= facts.sizes[0]) return nullptr;
        const u8* from = facts.address + at / per_piece * piece_bytes;
        for (int i = 1; i < facts.rank; i++) {
            const long long along = first[i] + row % facts.box[i];
            row /= facts.box[i];
            if (along < 0 || u64(along) >= facts.sizes[i]) return nullptr;
            from += u64(along) * facts.strides[i - 1];
        }
        return from;
    }

    template <class Each>
    void for_pieces(u32 base, const Each& each) const {
        for (u32 row = 0; row < rows(); row++)
            for (u32 piece = 0; piece < row_pieces; piece++) each(offset_of(base, row, piece), source_of(row, piece));
    }

   private:
    int per_piece;  // elements
};

inline void check_destination(const Place& place, const Box& box, const char* name) {
    BS_REQUIRE(place.offset % 128 == 0, "%s: 0x%x is no multiple of 128", name, place.offset);
    const u32 width = SWIZZLES[box.facts.swizzle];
    BS_REQUIRE(!width || box.row_pieces * box.piece_slots == width,
               "%s: rows of %u bytes with a swizzle of %u, which is not modelled", name, box.row_pieces * box.piece_slots,
               width);
}

// Into the same place of some CTAs of the cluster. `barrier_of` gives each one's mbarrier.
template <class BarrierOf>
void load_box(u32 to, const void* map, std::initializer_list<int> coordinates, const std::vector<int>& ranks,
              const BarrierOf& barrier_of) {
    static const char* NAME = "cp.async.bulk.tensor";
    const Box box(map, coordinates);
    Cluster& cluster = *machine->current->cta->cluster;
    std::vector<Cta*> targets;
    std::vector<Mbarrier*> barriers;
    std::vector<u32> epochs;
    const u32 offset = to & 0xffffff;
    for (const int each : ranks) {
        const Place place = place_of(u32(each) << 24 | offset, box.slot_bytes(), 16, NAME);
        check_destination(place, box, NAME);
        Mbarrier& barrier = barrier_of(*cluster.ctas[each]);
        Accessor by = this_thread();
        by.agent = barrier.agent, by.clock = barrier.epoch(), by.is_async_proxy = true;
        place.cta->shared->note(place.offset, box.slot_bytes(), true, by, NAME);
        if (machine->launch.timing != EARLIEST) std::memset(place.pointer(), POISON, box.slot_bytes());
        targets.push_back(place.cta), barriers.push_back(&barrier), epochs.push_back(barrier.epoch());
    }
    machine->current->clock.own++;
    machine->issue(NAME, targets, [=] {
        for (size_t i = 0; i < targets.size(); i++) {
            box.for_pieces(offset, [&](u32 at, const u8* from) {
                u8* place = targets[i]->shared->at(at);
                if (from)
                    std::memcpy(place, from, box.piece_bytes);
                else
                    std::memset(place, box.facts.fills_nan ? 0xff : 0, box.piece_bytes);
                if (box.piece_slots > box.piece_bytes)
                    std::memset(place + box.piece_bytes, POISON, box.piece_slots - box.piece_bytes);
            });
            barriers[i]->count_bytes(box.counted_bytes(), epochs[i]);
        }
    });
}

// As the driver's function of that name.
inline int encode_tiled(void* map, int type, u32 rank, const void* address, const u64* sizes, const u64* strides,
                        const u32* box, const u32* element_strides, int interleave, int swizzle, int /*l2*/,
                        int fills_nan) {
    if (const char* why = refusal(type, rank, address, sizes, strides, box, element_strides, interleave, swizzle)) {
        std::fprintf(stderr, "cuTensorMapEncodeTiled: %s\n", why);
        return 1;  // CUDA_ERROR_INVALID_VALUE
    }
    TensorMapFacts facts{};
    facts.magic = MAGIC;
    facts.type = u8(type), facts.rank = u8(rank), facts.swizzle = u8(swizzle), facts.fills_nan = u8(fills_nan);
    facts.address = static_cast<const u8*>(address);
    for (u32 i = 0; i < rank; i++) {
        facts.sizes[i] = sizes[i], facts.box[i] = u16(box[i]);
        if (i) facts.strides[i - 1] = strides[i - 1];
    }
    std::memcpy(map, &facts, sizeof facts);
    return 0;
}

}  // namespace bs::emulator
