/* SPDX-License-Identifier: Apache-2.0
 * Probes: an object for which EXISTS recently asked is evicted only as a last resort. */
#ifndef KVP_MASTER_CORE_PROTECT_PROBE_H
#define KVP_MASTER_CORE_PROTECT_PROBE_H

#include "common/mutate.h"
#include "master/core/protect/protection.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/base/conf.h"

void kvp_probe_init(kvp_protect_t *prot);
void kvp_probe_fini(kvp_protect_t *prot);
void kvp_probe_advance(kvp_protect_t *prot); /* called at the beginning of every input */
void kvp_probe_begin(kvp_protect_t *prot, uint32_t oid); /* records the first probe in a series of probes */
static inline bool
kvp_probe_is_live(const kvp_protect_t *prot, const kvp_obj_t *o)
{
    uint16_t left = (uint16_t)(o->probe_until - (uint16_t)prot->probes.tick);

    return o->has_probe != 0 && left > 0 && left <= prot->probes.lasts;
}
/* kvp_probe_share returns the limit of the bytes that all probes together protect. */
static inline uint64_t
kvp_probe_share(const kvp_protect_t *prot)
{
    return KVP_RULE(PROBE_SHARE) ? prot->ctx->st.size_bytes / 4 : UINT64_MAX;
}
/* kvp_probe_batch_share returns how many objects of one EXISTS message are protected. It uses the mean size of an
 * object, because looking up the size of each would cost too much. */
static inline uint64_t
kvp_probe_batch_share(const kvp_protect_t *prot)
{
    const kvp_master_stats_t *st = &prot->ctx->st;

    return kvp_probe_share(prot) / kvp_max_u64(1, st->used_bytes / kvp_max_u64(1, st->objects));
}
/* Returns true if a removal that respects probes must be answered HELD. This holds for at most the lease time after a
 * probe, and ends up to a tick earlier, so that a client that has waited for the lease time is not refused. */
static inline bool
kvp_probe_holds(const kvp_protect_t *prot, const kvp_obj_t *o)
{
    return kvp_probe_is_live(prot, o) && (uint16_t)(o->probe_until - (uint16_t)prot->probes.tick) > prot->probes.spare;
}
/* kvp_probe_leave records a probe of an object (for a group: of its lead). is_beyond: the message's share of
 * protected objects is used up. In a group, the first probe's is_beyond counts; an existing protection continues. */
static inline void
kvp_probe_leave(kvp_protect_t *prot, uint32_t oid, bool is_beyond)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);
    uint16_t until = (uint16_t)(prot->probes.tick + prot->probes.lasts);

    if (!kvp_probe_is_live(prot, o) || o->is_asking_counted == 0) kvp_probe_begin(prot, oid);
    if (o->probe_until != until && o->list != KVP_OBJLIST_PROBED) o->is_beyond_share = is_beyond;
    o->probe_until = until;
}
/* kvp_probe_protects returns true if the object may be evicted only when no other object can. */
bool kvp_probe_protects(const kvp_protect_t *prot, uint32_t unit);
void kvp_probe_park(kvp_protect_t *prot, uint32_t oid); /* parks a protected victim */
void kvp_probe_forget(kvp_protect_t *prot, uint32_t oid); /* removes a parked object from its list */
uint32_t kvp_probe_victim(kvp_protect_t *prot,
                          uint32_t after); /* next parked object in the order of first probes; KVP_OID_NONE = end */
void kvp_probe_tick(kvp_protect_t *prot);

#endif
