/* SPDX-License-Identifier: Apache-2.0
 * Probes: what somebody asked for goes only when nothing else can.
 */
#ifndef KVP_MASTER_CORE_PROTECT_PROBE_H
#define KVP_MASTER_CORE_PROTECT_PROBE_H

#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/master.h"

#define KVP_PROBE_TICK_NS KVP_MS(100)

typedef struct {
    kvp_objlist_t list;
    uint64_t bytes;
} kvp_probe_slot_t;

typedef struct {
    uint64_t tick;
    uint64_t seen; /* the time that was looked at last, in ticks */
    uint64_t first; /* nothing in the ring is from before */
    uint64_t n, bytes; /* objects aside, and what their end would give */
    uint16_t lasts; /* ticks */
    uint32_t ring_n;
    kvp_probe_slot_t *ring; /* aside, by the tick of the first probe, modulo ring_n */
    kvp_objlist_t older;
    uint32_t cursor; /* the next of these that is looked at */
} kvp_probes_t;

void kvp_probe_init(kvp_master_t *m);
void kvp_probe_fini(kvp_master_t *m);
void kvp_probe_advance(kvp_master_t *m); /* every input begins with it */
void kvp_probe_begin(kvp_master_t *m, uint32_t oid); /* a probe that follows upon no live one */
/* kvp_probe_protects: the object goes only when nothing else can. */
bool kvp_probe_protects(const kvp_master_t *m, uint32_t unit);
uint64_t kvp_probe_young_bytes(const kvp_master_t *m); /* aside, and probed not long ago */
void kvp_probe_set_aside(kvp_master_t *m, uint32_t oid); /* a victim that is protected */
void kvp_probe_forget(kvp_master_t *m, uint32_t oid); /* takes it from those aside, where it is */
uint32_t kvp_probe_victim(kvp_master_t *m, uint32_t after); /* those aside in their order; KVP_OID_NONE at the end */
void kvp_probe_tick(kvp_master_t *m);
const char *kvp_probe_check(const kvp_master_t *m);

#endif
