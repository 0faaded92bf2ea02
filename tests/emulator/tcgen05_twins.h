// Host twins of tcgen05.
#pragma once
#include "matrix_twins.h"
#include "tcgen05.h"

namespace bs::host {

struct AllocPart {
    Cta* cta;
    u32 to;
    int columns;
    u32 found;
};

static void check_columns(int columns, const char* name) {
    BS_REQUIRE(columns >= 32 && columns <= 512 && (columns & (columns - 1)) == 0, "%s of %d columns", name, columns);
}

// By warps of the same number in all CTAs of the group, which get the same columns.
static void meet_group(int ctas, const char* name, AllocPart& part,
                       const std::function<void(const std::vector<AllocPart*>&)>& act) {
    Warp& warp = *machine->current->warp;
    const auto group = group_of(*warp.cta, ctas, name);
    Meeting& meeting = warp.cta->cluster->pair_meetings[warp.index * 16 + unsigned(group[0]->rank)];
    meet(meeting, name, [ctas] { return size_t(32 * ctas); }, part, act, false);
}

void tcgen05_alloc(int ctas, u32 to, int columns) {
    check_columns(columns, "tcgen05.alloc");
    Cta& cta = *machine->current->cta;
    Tmem& own = tmem_of(cta);
    BS_REQUIRE(!own.has_relinquished, "tcgen05.alloc after tcgen05.relinquish_alloc_permit");
    BS_REQUIRE(u32(columns) <= own.last_size, "tcgen05.alloc of %d columns after one of %u: sizes may not grow", columns,
               own.last_size);
    while (own.find_free(u32(columns)) == TMEM_COLUMNS)
        machine->wait(cta.for_tmem, [columns] { return format("%d free columns of TMEM", columns); });
    AllocPart part{&cta, to, columns, 0};
    meet_group(ctas, "tcgen05.alloc", part, [](const std::vector<AllocPart*>& parts) {
        std::set<Cta*> done;
        const u32 first = tmem_of(*parts[0]->cta).find_free(u32(parts[0]->columns));
        for (AllocPart* each : parts) {
            BS_REQUIRE(each->columns == parts[0]->columns && (each->to & 0xffffff) == (parts[0]->to & 0xffffff),
                       "tcgen05.alloc differs between lanes or CTAs");
            each->found = first;
            if (!done.insert(each->cta).second) continue;
            Tmem& memory = tmem_of(*each->cta);
            memory.allocate(first, u32(each->columns));
            memory.last_size = u32(each->columns);
        }
    });
    if (machine->current->lane() == 0) store_shared(to, &part.found, 4);
}

void tcgen05_dealloc(int ctas, u32 tmem, int columns) {
    check_columns(columns, "tcgen05.dealloc");
    AllocPart part{machine->current->cta, tmem, columns, 0};
    meet_group(ctas, "tcgen05.dealloc", part, [tmem, columns](const std::vector<AllocPart*>& parts) {
        std::set<Cta*> done;
        for (AllocPart* each : parts) {
            if (!done.insert(each->cta).second) continue;
            const size_t given = std::erase_if(tmem_of(*each->cta).allocations, [&](const Allocation& a) {
                return a.first == tmem && a.columns == u32(columns);
            });
            BS_REQUIRE(given == 1, "tcgen05.dealloc of %d columns from %u, which were not allocated so", columns, tmem);
            machine->wake(each->cta->for_tmem);
        }
    });
}

void tcgen05_relinquish(int) { tmem_of(*machine->current->cta).has_relinquished = true; }

void tcgen05_fence_before() {
    Thread& self = *machine->current;
    for (const auto& each : {self.warp->tmem_loads, self.warp->tmem_stores})
        if (each) self.clock.learn(each->agent, each->waited);
}
void tcgen05_fence_after() { machine->current->tmem_view = machine->current->clock.base; }

// Arrives at each of the barriers when all that the thread has issued is done.
static void commit_to(int ctas, std::vector<Mbarrier*> barriers) {
    Thread& self = *machine->current;
    const auto queue = (queue_of(self), self.tcgen05);
    const size_t end = queue->operations.size();
    std::vector<Cta*> targets;
    for (Mbarrier* each : barriers) targets.push_back(&each->cta);
    for (Cta* each : group_of(*self.cta, ctas, "tcgen05.commit")) targets.push_back(each);
    // Its products came after the copies that the thread had waited for. What threads stored is not passed on.
    const KnownRef known = self.clock.base;
    machine->issue("tcgen05.commit", targets, [queue, end, barriers, known] {
        queue->run_until(end);
        for (Mbarrier* each : barriers) {
            for (u32 agent = 0; agent < known->seen.size(); agent++)
                if (machine->agents[agent].is_async_proxy) each->arrived.add(agent, known->seen[agent]);
            each->arrived.add(queue->cp, u32(end));
            each->arrive_for(queue->mma, u32(end));
        }
    });
    machine->maybe_switch();
}

void tcgen05_commit(int ctas, u32 barrier) { commit_to(ctas, {&mbarrier_at(barrier, "tcgen05.commit", true)}); }

void tcgen05_commit_multicast(int ctas, u32 barrier, u32 mask) {
    std::vector<Mbarrier*> barriers;
    Cluster& cluster = *machine->current->cta->cluster;
    for (size_t rank = 0; rank < cluster.ctas.size(); rank++)
        if (mask >> rank & 1)
            barriers.push_back(&mbarrier_at(Place{cluster.ctas[rank].get(), barrier & 0xffffff}, "tcgen05.commit", true));
    BS_REQUIRE(mask && mask >> cluster.ctas.size() == 0, "tcgen05.commit to CTAs %x of a cluster of %zu", mask,
               cluster.ctas.size());
    commit_to(ctas, barriers);
}

static void check_issuer(int ctas, const char* name) {
    BS_REQUIRE(ctas == 1 || machine->current->cta->rank % 2 == 0, "%s with cta_group::2 by the odd CTA of a pair", name);
}

void tcgen05_cp_32x128b_warpx4(int ctas, u32 tmem, u64 descriptor) {
    check_issuer(ctas, "tcgen05.cp");
    BS_REQUIRE(tmem >> 16 == 0 && tmem % 4 == 0, "tcgen05.cp to TMEM address %08x", tmem);
    Tcgen05Queue& queue = queue_of(*machine->current);
    const ScaleCopy copy{group_of(*machine->current->cta, ctas, "tcgen05.cp"), decode_tcgen05(descriptor), tmem & 0xffff};
    BS_REQUIRE(copy.from.swizzle == 0, "tcgen05.cp with a swizzle, which is not modelled");
    copy.note(queue);
    machine->current->clock.own++;
    queue.add([copy] { copy.run(); });
}

void tcgen05_mma_block_scale(int ctas, int kind, int keep, u32 d, u64 a, u64 b, u32 idesc, u32 a_scale, u32 b_scale,
                             bool accumulate) {
    check_issuer(ctas, "tcgen05.mma");
    BS_REQUIRE(d >> 16 == 0 && a_scale >> 16 == 0 && b_scale >> 16 == 0, "tcgen05.mma with a TMEM lane that is not 0");
    Tcgen05Queue& queue = queue_of(*machine->current);
    queue.keep(Keep(keep), a);
    const Mma mma{decode_instruction(MmaKind(kind), idesc, ctas), group_of(*machine->current->cta, ctas, "tcgen05.mma"),
                  decode_tcgen05(a), decode_tcgen05(b), d, a_scale, b_scale, accumulate};
    mma.note(queue);
    machine->current->clock.own++;
    queue.add([mma] { mma.run(); });
}

struct Elected {
    int lane, first;
};

void elect_one(u32& elected) {
    Elected part{machine->current->lane(), 0};
    meet_warp("elect.sync", part, [](const std::vector<Elected*>& parts) {
        int first = 31;
        for (const Elected* each : parts) first = std::min(first, each->lane);
        for (Elected* each : parts) each->first = first;
    });
    elected = part.lane == part.first;
}

}  // namespace bs::host
