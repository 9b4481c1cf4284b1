/* SPDX-License-Identifier: Apache-2.0
 * The hash table of the index: digest -> oid, in about 9 bytes an object. A digest is mixed with a
 * secret into 128 bits; of these the object's record holds 64, and the table 16. Grows and shrinks
 * a few buckets at a time. */
#ifndef KVP_MASTER_CORE_CATALOG_TABLE_H
#define KVP_MASTER_CORE_CATALOG_TABLE_H

#include "common/recpool.h"
#include "master/core/catalog/index.h"

typedef struct kvp_objbucket kvp_objbucket_t;

typedef struct {
    kvp_objbucket_t **pieces; /* NULL = empty */
    uint32_t cap; /* buckets; 0 = no table */
    uint32_t n; /* objects */
} kvp_objpart_t;

typedef struct {
    const kvp_recpool_t *records; /* borrowed: kvp_obj_t */
    kvp_mix_t mix; /* a secret: clients cannot know which digests share a bucket */
    kvp_objpart_t now;
    kvp_objpart_t old; /* while a resize is under way */
    uint32_t old_at; /* buckets below are moved */
    uint64_t memory_bytes;
} kvp_objtable_t;

void kvp_objtable_init(kvp_objtable_t *t, const kvp_recpool_t *records, uint64_t seed);
void kvp_objtable_fini(kvp_objtable_t *t);

/* kvp_objtable_id is what the digest's record holds of it. add: the digest is absent. del finds the
 * object by its record. */
uint64_t kvp_objtable_id(const kvp_objtable_t *t, kvp_digest_t digest);
void kvp_objtable_add(kvp_objtable_t *t, kvp_digest_t digest, uint32_t oid);
void kvp_objtable_del(kvp_objtable_t *t, uint32_t oid);
uint32_t kvp_objtable_find(const kvp_objtable_t *t, kvp_digest_t digest);
void kvp_objtable_find_many(const kvp_objtable_t *t, const kvp_digest_t *digests, size_t n, uint32_t *oids);
bool kvp_objtable_step(kvp_objtable_t *t); /* moves a few buckets of a resize; true while there is more */

#endif
