/* SPDX-License-Identifier: Apache-2.0
 * What kvp_master_check asks of the journal, of probes and of heaps. */
#include "tests/world/check/core_check.h"

#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/deferred.h"
#include "master/core/recovery/state.h"

static const kvp_heapnode_t *
get(const kvp_heap_t *heap, uint32_t i)
{
    return *kvp_blocks_at(&heap->nodes, i);
}

const char *
kvp_heap_check(const kvp_heap_t *heap)
{
    for (uint32_t i = 0; i < heap->n; i++) {
        if (get(heap, i)->at != i + 1) return "a node of a heap is elsewhere";
        if (i > 0 && get(heap, i)->key < get(heap, (i - 1) / 2)->key) return "a heap is out of order";
    }
    return NULL;
}

const char *
kvp_journal_check(const kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log;
    uint64_t fresh = (m->cat.fresh_commits.len - m->cat.fresh_commits_at) / sizeof(kvp_fresh_commit_t), last = 0;
    uint32_t cursor = 0, left = UINT32_MAX, oid;

    if (j->written > j->end || j->synced > j->written) return "more of the log is written or synced than there is";
    while ((oid = kvp_objindex_walk(m->cat.index, &cursor, UINT32_MAX, &left)) != KVP_OID_NONE) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

        if (o->state == KVP_OBJ_COMMITTED && o->is_fresh != 0 && fresh-- == 0) return "a commit stays not durable";
    }
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(m->prot.on_log); i++, last = 0)
        kvp_list_foreach (pos, &m->prot.on_log[i]) {
            const kvp_deferred_t *w = kvp_list_entry(pos, kvp_deferred_t, durable);

            if (!w->is_durable_awaited || w->after < last) return "answers wait for the log out of order";
            last = w->after;
        }
    return NULL;
}

const char *
kvp_probe_check(const kvp_protect_t *prot)
{
    const kvp_probes_t *p = &prot->probes;
    uint64_t n = p->older.n, all_bytes = 0;

    for (uint32_t i = 0; i < p->ring_n; i++) {
        uint64_t bytes = 0;
        uint32_t walked = 0;

        for (uint32_t oid = p->ring[i].list.oldest; oid != KVP_OID_NONE; oid = kvp_obj(prot->cat->index, oid)->next) {
            const kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

            if (o->list != KVP_OBJLIST_PROBED ||
                (p->tick - (uint16_t)((uint16_t)p->tick - o->probe_since)) % p->ring_n != i)
                return "a probe is in a wrong list";
            bytes += kvp_victim_bytes(prot, oid);
            walked++;
        }
        if (bytes != p->ring[i].bytes || walked != p->ring[i].list.n) return "probed bytes are wrong";
        n += walked;
        all_bytes += bytes;
    }
    for (uint32_t oid = p->older.oldest; oid != KVP_OID_NONE; oid = kvp_obj(prot->cat->index, oid)->next)
        all_bytes += kvp_victim_bytes(prot, oid);
    if (all_bytes != p->bytes) return "probed bytes do not add up";
    return n == p->n ? NULL : "probed objects are miscounted";
}
