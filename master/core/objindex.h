/* SPDX-License-Identifier: Apache-2.0
 * The index: digest -> object record. Records live in blocks that never move; an object is named by its number (oid).
 * The hash table grows and shrinks a few slots at a time, so no insert is ever long, and memory comes back as objects
 * go. Also the list of objects in order of last use, which the LRU policy keeps.
 */
#ifndef KVP_MASTER_CORE_OBJINDEX_H
#define KVP_MASTER_CORE_OBJINDEX_H

#include "common/hash.h"

#define KVP_OID_NONE UINT32_MAX

typedef enum {
    KVP_OBJ_NONE = 0, /* record is free */
    KVP_OBJ_WRITING, /* an attempt owns it */
    KVP_OBJ_COMMITTED,
    KVP_OBJ_GONE, /* out of the index; the record waits for its last ticket */
} kvp_obj_state_t;

/* Where one copy lies. */
typedef struct {
    uint32_t chunk; /* number in the master's chunk table; KVP_OID_NONE = nowhere */
    uint32_t slot;
    uint64_t generation;
    uint32_t key_off; /* units of 64 bytes in the chunk's metadata */
    uint32_t long_key_slot; /* in the chunk's long-key allocator, or KVP_SLAB_NONE */
} kvp_place_t;

typedef struct {
    kvp_digest_t digest;
    uint64_t version;
    uint64_t len;
    uint64_t sum;
    uint64_t used_seq; /* last use, in the order of uses */
    uint8_t *key; /* owned */
    kvp_place_t at;
    uint32_t lru_prev, lru_next; /* towards older, towards younger; free list link in lru_next */
    uint32_t tickets; /* holds and reservations; > 0 takes the object off the LRU list */
    uint32_t attempt; /* WRITING: number of the attempt */
    uint16_t key_len;
    uint8_t state;
    uint8_t is_listed; /* on the LRU list */
} kvp_obj_t;

typedef struct kvp_objindex kvp_objindex_t;

kvp_objindex_t *kvp_objindex_create(void);
void kvp_objindex_destroy(kvp_objindex_t *ix);

/* kvp_obj returns the record of an oid in use (borrowed; stays until kvp_objindex_free). */
kvp_obj_t *kvp_obj(kvp_objindex_t *ix, uint32_t oid);
/* kvp_obj_limit is above every oid in use. kvp_objindex_walk returns the next one in use from *cursor on and below end,
 * and moves *cursor behind it; *left counts down what was looked at. KVP_OID_NONE where left is used up or nothing is
 * left: then *cursor is at the end or above. */
uint32_t kvp_obj_limit(const kvp_objindex_t *ix);
uint32_t kvp_objindex_walk(kvp_objindex_t *ix, uint32_t *cursor, uint32_t end, uint32_t *left);

/* kvp_objindex_find returns the oid of the digest, or KVP_OID_NONE. find_many asks for n at once, hiding memory
 * latency; oids has room for n. */
uint32_t kvp_objindex_find(kvp_objindex_t *ix, kvp_digest_t digest);
void kvp_objindex_find_many(kvp_objindex_t *ix, const kvp_digest_t *digests, size_t n, uint32_t *oids);

/* kvp_objindex_add makes a record (state WRITING) with a copy of the key. The digest must be absent. */
uint32_t kvp_objindex_add(kvp_objindex_t *ix, kvp_digest_t digest, const void *key, uint16_t key_len);
/* kvp_objindex_unlink takes the digest out of the index, the record stays; free gives the record back. */
void kvp_objindex_unlink(kvp_objindex_t *ix, uint32_t oid);
void kvp_objindex_free(kvp_objindex_t *ix, uint32_t oid);

/* The LRU list. use = most recently used (enters the list if it is not on it); oldest/younger walk it. */
void kvp_objindex_lru_use(kvp_objindex_t *ix, uint32_t oid);
void kvp_objindex_lru_remove(kvp_objindex_t *ix, uint32_t oid);
uint32_t kvp_objindex_lru_oldest(const kvp_objindex_t *ix);

/* kvp_objindex_step moves a few slots of a resize that is under way; true while there is more. */
bool kvp_objindex_step(kvp_objindex_t *ix);
uint64_t kvp_objindex_memory_bytes(const kvp_objindex_t *ix);

#endif
