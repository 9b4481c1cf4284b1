/* SPDX-License-Identifier: Apache-2.0
 * The hash table of the index: digest -> oid, in about 9 bytes for each object. A digest is mixed with a secret into
 * 128 bits; the object's record has 64 of these bits, the table 16. The table grows and shrinks a few buckets at a
 * time. */
#ifndef KVP_MASTER_CORE_CATALOG_TABLE_H
#define KVP_MASTER_CORE_CATALOG_TABLE_H

#include "common/recpool.h"
#include "master/core/catalog/index.h"

typedef struct kvp_objbucket kvp_objbucket_t;

typedef struct {
    kvp_objbucket_t **pieces; /* pieces of the array of buckets; a NULL piece is empty */
    uint32_t cap; /* number of buckets; 0 = no table */
    uint32_t n; /* number of objects */
} kvp_objpart_t;

typedef struct {
    const kvp_recpool_t *records; /* pool of kvp_obj_t, borrowed */
    kvp_mix_t mix; /* a secret, so that clients cannot know which digests share a bucket */
    kvp_objpart_t now; /* the table; during a resize, the new table */
    kvp_objpart_t old; /* the old table during a resize */
    uint32_t old_at; /* buckets of `old` below this index were moved to `now` */
    uint64_t memory_bytes;
} kvp_objtable_t;

void kvp_objtable_init(kvp_objtable_t *t, const kvp_recpool_t *records, uint64_t seed);
void kvp_objtable_fini(kvp_objtable_t *t);

/* kvp_objtable_id returns the bits of the digest that an object's record keeps. kvp_objtable_add: the digest must be
 * absent. kvp_objtable_del finds the object by the id in its record. */
uint64_t kvp_objtable_id(const kvp_objtable_t *t, kvp_digest_t digest);
void kvp_objtable_add(kvp_objtable_t *t, kvp_digest_t digest, uint32_t oid);
void kvp_objtable_del(kvp_objtable_t *t, uint32_t oid);
uint32_t kvp_objtable_find(const kvp_objtable_t *t, kvp_digest_t digest);
void kvp_objtable_find_many(const kvp_objtable_t *t, const kvp_digest_t *digests, size_t n, uint32_t *oids);
bool kvp_objtable_step(kvp_objtable_t *t); /* moves a few buckets from `old` to `now`; true while buckets are left */

#endif
