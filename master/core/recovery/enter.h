/* SPDX-License-Identifier: Apache-2.0
 * Enters objects that were committed before into the catalog, from a node's report or from the log. */
#ifndef KVP_MASTER_CORE_RECOVERY_ENTER_H
#define KVP_MASTER_CORE_RECOVERY_ENTER_H

#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "proto/jrec.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

/* kvp_enter_object makes a committed object in the index, without a place, and returns its oid. It reads only digest,
 * key_len, version, sum and pin of the descriptor. lineage NULL = none, or unknown. kvp_enter_copy adds a copy of len
 * payload bytes in an allocated extent. kvp_enter_tier makes the object exist only on this tier. kvp_enter_may_tier
 * returns false if there are too many tenants, or the length is impossible. kvp_enter_chunk gives the chunk to the
 * tenant; false if another tenant has it, or there are too many tenants. kvp_enter_name sets the tenant's name, if it
 * is unknown and matches the tenant's id, and records it in the log. kvp_enter_leave removes an object again while
 * its allocators are open (kvp_slab_create_open). */
uint32_t kvp_enter_object(kvp_master_t *m, const kvp_desc_t *desc, const uint8_t *key,
                          const kvp_wire_lineage_t *lineage);
void kvp_enter_copy(kvp_master_t *m, uint32_t oid, const kvp_place_t *at, uint64_t len);
bool kvp_enter_may_tier(const kvp_master_t *m, uint32_t tenant, uint64_t len);
void kvp_enter_tier(kvp_master_t *m, uint32_t oid, kvp_segment_t *g, uint32_t tenant, uint64_t len);
bool kvp_enter_chunk(kvp_master_t *m, kvp_chunk_t *c, uint32_t tenant);
void kvp_enter_name(kvp_master_t *m, kvp_tenant_t *t, const char *name);
void kvp_enter_leave(kvp_master_t *m, uint32_t oid);

/* kvp_enter_open_chunk makes open allocators for a chunk that has none. kvp_enter_place allocates the extent that a
 * log record describes, and the space of a long key, in an open chunk: CORRUPT, INVALID, LIMIT, NOMEM.
 * kvp_enter_close_chunk ends the restore: all other space becomes free. CORRUPT: extents overlap; LIMIT, NOMEM. */
void kvp_enter_open_chunk(kvp_chunk_t *c, bool has_long_key);
kvp_err_t kvp_enter_place(kvp_chunk_t *c, const kvp_jrec_place_t *p, uint64_t len, uint32_t key_len, kvp_place_t *at)
    KVP_MUST_USE;
kvp_err_t kvp_enter_close_chunk(kvp_chunk_t *c) KVP_MUST_USE;

#endif
