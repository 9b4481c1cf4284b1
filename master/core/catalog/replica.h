/* SPDX-License-Identifier: Apache-2.0
 * An object's places, its served replicas, and their form in answers to clients. */
#ifndef KVP_MASTER_CORE_CATALOG_REPLICA_H
#define KVP_MASTER_CORE_CATALOG_REPLICA_H

#include "master/core/catalog/catalog.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "proto/wire.h"

/* kvp_place_chunk returns the chunk of a place, kvp_obj_chunk the chunk in which an object lies; NULL = no place. */
static inline kvp_chunk_t *
kvp_place_chunk(const kvp_catalog_t *cat, const kvp_place_t *at)
{
    return kvp_ptab_get(&cat->chunks, at->chunk);
}
static inline kvp_chunk_t *
kvp_obj_chunk(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    return o->chunk == KVP_OBJ_CHUNK_NONE ? NULL : kvp_ptab_get(&cat->chunks, o->chunk);
}
/* kvp_obj_tier returns the tier that has the object's version; NULL = none. kvp_obj_is_on_tier_alone returns true if
 * the object has no copy in memory. */
static inline kvp_segment_t *
kvp_obj_tier(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    kvp_segment_t *g = o->is_on_tier == 0 ? NULL : kvp_obj_chunk(cat, o)->segment;

    if (g != NULL && !g->is_tier) g = g->tier;
    return g != NULL && g->life == KVP_SEGMENT_DROPPED ? NULL : g;
}
static inline bool
kvp_obj_is_on_tier_alone(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    return o->is_on_tier != 0 && kvp_obj_chunk(cat, o)->segment->is_tier;
}
/* Returns the tenant of an object, which must have a place. */
static inline kvp_tenant_t *
kvp_obj_tenant(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    return kvp_obj_chunk(cat, o)->tenant;
}
/* kvp_place_at returns the index in `places` of the place with this extent, which must be there. kvp_place_in returns
 * the index of the first of n places that lies in the segment with this id; n = none. kvp_place_key_off
 * returns the offset of the place's key in the chunk's metadata, in units of 64 bytes. */
uint32_t kvp_place_at(const kvp_place_t *places, const kvp_chunk_t *c, uint32_t slot);
uint32_t kvp_place_in(const kvp_catalog_t *cat, const kvp_place_t *places, uint32_t n, uint32_t segment);
uint32_t kvp_place_key_off(const kvp_chunk_t *c, const kvp_place_t *at);
kvp_place_t kvp_obj_place(const kvp_catalog_t *cat, const kvp_obj_t *o); /* place of the first copy in memory */
uint32_t kvp_obj_places(const kvp_catalog_t *cat, const kvp_obj_t *o,
                        kvp_place_t places[KVP_REPLICAS_MAX]); /* writes the places in memory, returns their number */
void kvp_obj_set_on_tier_alone(kvp_catalog_t *cat, uint32_t oid, const kvp_chunk_t *c,
                               uint64_t len); /* makes an object without a place exist only on the tier of chunk c */
bool kvp_obj_lies_at(const kvp_catalog_t *cat, const kvp_obj_t *o, const kvp_chunk_t *c, uint32_t slot);
/* kvp_obj_add_place adds a copy to the object's record, kvp_replica_del removes a copy; the extent is not changed. */
void kvp_obj_add_place(kvp_catalog_t *cat, uint32_t oid, const kvp_place_t *at, uint64_t slack);
void kvp_replica_del(kvp_catalog_t *cat, uint32_t oid, const kvp_place_t *at);
uint64_t kvp_obj_bytes(const kvp_catalog_t *cat, const kvp_obj_t *o); /* bytes of the extents of all copies */
/* kvp_copy_set_long_key records where the long key of one copy lies, once its place is known. */
void kvp_copy_set_long_key(kvp_catalog_t *cat, uint32_t oid, const kvp_chunk_t *c, uint32_t slot,
                           uint32_t long_key_slot);
void kvp_obj_count_held(kvp_catalog_t *cat, const kvp_obj_t *o,
                        int32_t sign); /* adds sign (1 or -1) to the tickets that the object's segments count */
/* kvp_obj_len returns the payload's length; if the object has no extent, the length that its put asked for. */
uint64_t kvp_obj_len(const kvp_catalog_t *cat, const kvp_obj_t *o);
static inline uint64_t
kvp_obj_version(const kvp_obj_t *o)
{
    return o->generation;
}
kvp_digest_t kvp_obj_digest_of(const kvp_catalog_t *cat, const kvp_obj_t *o); /* the object must have a place */
/* kvp_obj_up_n returns the number of copies in memory whose nodes are connected; 0 if the object is not committed, or
 * was removed by a bump of its namespace. A group that hides its members is not considered (kvp_obj_served_n). */
uint32_t kvp_obj_up_n(const kvp_catalog_t *cat, const kvp_obj_t *o);
/* returns true if answers name the copy that is leaving, because no other copy is in memory of a connected node */
bool kvp_obj_names_leaving(const kvp_catalog_t *cat, const kvp_obj_t *o);
/* returns true if no copy is in memory of a connected node, and the object can be loaded from its tier */
bool kvp_obj_is_on_tier_up(const kvp_catalog_t *cat, const kvp_obj_t *o);
bool kvp_obj_is_kept(const kvp_catalog_t *cat,
                     const kvp_obj_t *o); /* true if a node with a copy was just lost, and a keeper holds its memory */
bool kvp_obj_is_reported(const kvp_catalog_t *cat,
                         const kvp_obj_t *o); /* true if readable soon: a node reports a copy, or soon reconnects */
void kvp_place_wire(const kvp_catalog_t *cat, const kvp_place_t *at, kvp_wire_loc_t *loc);
/* kvp_obj_wire writes an object for an answer, with its copies on connected nodes. A copy on the host host_id is first.
 * The other copies are rotated by `turn`, so that readers share them. */
void kvp_obj_wire(const kvp_catalog_t *cat, const kvp_obj_t *o, const char *host_id, uint32_t turn, kvp_wire_obj_t *obj,
                  kvp_wire_loc_t locs[KVP_REPLICAS_MAX]);
/* kvp_obj_is_on_host returns true if a copy lies in memory of a connected node on the host host_id. */
bool kvp_obj_is_on_host(const kvp_catalog_t *cat, const kvp_obj_t *o, const char *host_id);

#endif
