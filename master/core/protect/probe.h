/* SPDX-License-Identifier: Apache-2.0
 * Probes: what somebody asked for goes only when nothing else can.
 */
#ifndef KVP_MASTER_CORE_PROTECT_PROBE_H
#define KVP_MASTER_CORE_PROTECT_PROBE_H

#include "master/core/protect/protection.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/master.h"

void kvp_probe_init(kvp_protect_t *prot);
void kvp_probe_fini(kvp_protect_t *prot);
void kvp_probe_advance(kvp_protect_t *prot); /* every input begins with it */
void kvp_probe_begin(kvp_protect_t *prot, uint32_t oid); /* a probe that follows upon no live one */
static inline bool
kvp_probe_is_live(const kvp_protect_t *prot, const kvp_obj_t *o)
{
    uint16_t left = (uint16_t)(o->probe_until - (uint16_t)prot->probes.tick);

    return o->has_probe != 0 && left > 0 && left <= prot->probes.lasts;
}
/* A removal that heeds probes is answered HELD for the lease time after a probe at most, and for a tick less at least: who has
 * waited for the lease time is not refused. */
static inline bool
kvp_probe_holds(const kvp_protect_t *prot, const kvp_obj_t *o)
{
    return kvp_probe_is_live(prot, o) && (uint16_t)(o->probe_until - (uint16_t)prot->probes.tick) > prot->probes.spare;
}
static inline void
kvp_probe_leave(kvp_protect_t *prot, uint32_t oid) /* of a group: its lead */
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

    if (!kvp_probe_is_live(prot, o)) kvp_probe_begin(prot, oid);
    o->probe_until = (uint16_t)(prot->probes.tick + prot->probes.lasts);
}
/* kvp_probe_protects: the object goes only when nothing else can. */
bool kvp_probe_protects(const kvp_protect_t *prot, uint32_t unit);
uint64_t kvp_probe_recent_bytes(const kvp_protect_t *prot); /* parked, and probed not long ago */
void kvp_probe_park(kvp_protect_t *prot, uint32_t oid); /* a victim that is protected */
void kvp_probe_forget(kvp_protect_t *prot, uint32_t oid); /* takes it from those that are parked, where it is */
uint32_t kvp_probe_victim(kvp_protect_t *prot,
                          uint32_t after); /* those that are parked, in their order; KVP_OID_NONE at the end */
void kvp_probe_tick(kvp_protect_t *prot);

#endif
