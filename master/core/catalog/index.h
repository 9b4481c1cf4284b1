/* SPDX-License-Identifier: Apache-2.0
 * The index: digest -> object record. Records live in blocks that never move; an object is named by its number (oid).
 * The hash table grows and shrinks a few slots at a time, so no insert is ever long, and memory comes back as objects
 * go. A record is 56 bytes: what most objects do not have lies in an extension that is made when it is needed, and what
 * follows from something else is computed (kvp_obj_len and kvp_obj_place in catalog/replica.h, kvp_obj_digest).
 */
#ifndef KVP_MASTER_CORE_CATALOG_INDEX_H
#define KVP_MASTER_CORE_CATALOG_INDEX_H

#include "common/hash.h"
#include "proto/wire.h"

#define KVP_OID_NONE UINT32_MAX
#define KVP_OBJ_CHUNK_NONE 0xffffffu /* in a record: no place; chunk numbers are below it */
#define KVP_OBJ_TICKETS_MAX 0x7fffu
#define KVP_OBJ_TIER_LEN_BITS 40 /* payload bytes of what is on a tier alone are below 2^40 */

typedef enum {
    KVP_OBJ_NONE = 0, /* record is free */
    KVP_OBJ_WRITING, /* an attempt owns it */
    KVP_OBJ_COMMITTED,
    KVP_OBJ_GONE, /* out of the index; the record waits for its last ticket */
    KVP_OBJ_STAGED, /* WRITING, and not in the index before it replaces another */
} kvp_obj_state_t;

/* The kind of list that an object is on; the flags of a record have three bits for it. */
typedef enum {
    KVP_OBJLIST_NONE = 0,
    KVP_OBJLIST_LRU,
    KVP_OBJLIST_PARKED, /* its segment's node does not answer: candidates.c */
    KVP_OBJLIST_PROBED, /* protected by a probe: probe.c */
    KVP_OBJLIST_PINNED, /* softly: pin.c */
    KVP_OBJLIST_COLD, /* read back from its tier, and not used again since: candidates.c */
} kvp_objlist_kind_t;

typedef struct kvp_obj {
    uint64_t id; /* of the digest: kvp_objindex_id */
    uint64_t sum;
    uint64_t
        generation; /* its version, and that of its extent but where the extension has another; 0 = no extent yet */
    union {
        uint32_t prev; /* on a list: towards older */
        uint32_t attempt; /* WRITING: number of the attempt */
    };
    uint32_t next; /* on a list: towards younger */
    uint32_t used; /* last use, by the index's clock: kvp_obj_age */
    uint32_t key; /* in the key store; with an extension, the number of that */
    uint64_t chunk : 24; /* number in the catalog's chunk table, or KVP_OBJ_CHUNK_NONE */
    uint64_t slot : 24; /* of an object on a tier only, with slack: the payload's bytes */
    uint64_t slack : 16; /* bytes of the extent after the payload */
    uint16_t probe_since, probe_until; /* ticks, where has_probe: probe.c */
    uint16_t tickets : 15; /* holds and reservations; > 0 keeps the object from eviction */
    uint16_t is_used_since : 1; /* used since it was put, written to its tier, or last kept there */
    uint16_t state : 3;
    uint16_t list : 3; /* kvp_objlist_kind_t */
    uint16_t has_ext : 1;
    uint16_t has_probe : 1; /* some probe was recorded */
    uint16_t is_asking_counted : 1; /* a probe, a look-up or a load counted as a use, and no other use came since */
    uint16_t is_beyond_share : 1; /* its last probe exceeded the share of a batch */
    uint16_t pin : 2; /* kvp_pin_t, of a committed object */
    uint16_t is_fresh : 1; /* its commit is in the journal, and not known to be durable */
    uint16_t is_on_tier : 1; /* its version is on the SSD tier of its node, too, or only there: kvp_obj_tier */
    uint16_t is_moving : 1; /* it is on its way between memory and the tier: space/tier.c */
    uint16_t is_ahead : 1; /* counted in its tenant's ahead_bytes: evict/ahead.c */
} kvp_obj_t;

_Static_assert(sizeof(kvp_obj_t) == 56, "a record costs 56 bytes");

/* The place of one copy of an object. */
typedef struct {
    uint32_t chunk; /* number in the catalog's chunk table; KVP_OID_NONE = nowhere */
    uint32_t slot;
    uint64_t generation;
    uint32_t long_key_slot; /* in the chunk's long-key allocator, or KVP_SLAB_NONE */
} kvp_place_t;

/* Fields that few objects have. Made with kvp_obj_ext_make; freed with the object. */
typedef struct {
    uint32_t key; /* in the key store, moved here from the record */
    uint32_t long_key_slot; /* in the chunk's long-key allocator, or KVP_SLAB_NONE */
    uint64_t generation; /* of the extent, if it differs from the version; else 0 */
    kvp_place_t *more; /* owned: the copies but the first */
    uint32_t more_n;
    uint32_t replacement; /* the staged version that will replace it; KVP_OID_NONE = none */
    struct kvp_member *member; /* of a group: group.c; NULL = of none */
} kvp_objext_t;

/* A list of objects in order of use, linked through their records: an object is on one list at most. */
typedef struct {
    kvp_objlist_kind_t kind;
    uint32_t oldest, youngest; /* KVP_OID_NONE = empty */
    uint32_t n;
} kvp_objlist_t;

typedef struct kvp_objindex kvp_objindex_t;

/* kvp_objindex_create: seed is a secret (where digests and keys lie in the tables). */
kvp_objindex_t *kvp_objindex_create(uint64_t seed);
void kvp_objindex_destroy(kvp_objindex_t *ix);

/* kvp_obj returns the record of an oid in use (borrowed; stays until kvp_objindex_free). */
kvp_obj_t *kvp_obj(kvp_objindex_t *ix, uint32_t oid);
/* kvp_obj_limit is above every oid in use. kvp_objindex_walk returns the next oid in use from
 * *cursor on and below end, and advances *cursor; *left counts down the examined records.
 * KVP_OID_NONE without left, or at the end: *cursor is then at the end or above. */
uint32_t kvp_obj_limit(const kvp_objindex_t *ix);
uint32_t kvp_objindex_walk(kvp_objindex_t *ix, uint32_t *cursor, uint32_t end, uint32_t *left);

/* kvp_objindex_id is a record's part of its digest: 64 bits that no client can choose. */
uint64_t kvp_objindex_id(const kvp_objindex_t *ix, kvp_digest_t digest);
/* kvp_objindex_find returns the oid of the digest, or KVP_OID_NONE. kvp_objindex_find_many looks up
 * n at once, hiding memory latency; oids has room for n. */
uint32_t kvp_objindex_find(kvp_objindex_t *ix, kvp_digest_t digest);
void kvp_objindex_find_many(kvp_objindex_t *ix, const kvp_digest_t *digests, size_t n, uint32_t *oids);

/* kvp_objindex_make makes a record (state WRITING, no place) with a copy of the key and its lineage
 * (NULL = none), not in the index yet. kvp_objindex_link puts it into the index under its digest,
 * which must be absent; kvp_objindex_unlink removes it, and the record stays. kvp_objindex_free
 * frees the record, its key and its extension: it must be out of the index and on no list. */
uint32_t kvp_objindex_make(kvp_objindex_t *ix, kvp_digest_t digest, const void *key, uint16_t key_len,
                           const kvp_wire_lineage_t *lineage);
void kvp_objindex_link(kvp_objindex_t *ix, uint32_t oid, kvp_digest_t digest);
void kvp_objindex_unlink(kvp_objindex_t *ix, uint32_t oid);
void kvp_objindex_free(kvp_objindex_t *ix, uint32_t oid);

/* The key: its length, a comparison, a copy of its bytes in buf (room for KVP_KEY_MAX; returns the
 * length). */
uint16_t kvp_obj_key_len(const kvp_objindex_t *ix, const kvp_obj_t *o);
bool kvp_obj_has_key(const kvp_objindex_t *ix, const kvp_obj_t *o, const void *key, size_t len);
uint16_t kvp_obj_key_copy(const kvp_objindex_t *ix, const kvp_obj_t *o, uint8_t *buf);
kvp_wire_lineage_t kvp_obj_lineage(const kvp_objindex_t *ix, const kvp_obj_t *o);
/* kvp_obj_digest computes the whole digest again, from the key. */
kvp_digest_t kvp_obj_digest(const kvp_objindex_t *ix, const kvp_obj_t *o, uint64_t pool_seed, uint32_t tenant);

/* The extension: NULL without one. kvp_obj_ext_make returns the existing one, or a new one, zeroed
 * except for fields whose empty value is not 0. Borrowed; stays until kvp_objindex_free. */
kvp_objext_t *kvp_obj_ext(const kvp_objindex_t *ix, const kvp_obj_t *o);
kvp_objext_t *kvp_obj_ext_make(kvp_objindex_t *ix, kvp_obj_t *o);

/* Use. The clock of uses is a 32-bit number that follows time, in units of 2^25 ns, and runs ahead
 * of it by one a use within a limit: at first every use has its own number, under load uses within
 * 34 ms share one, and an age is right up to four years. kvp_obj_touch sets the last use to now.
 * kvp_obj_age falls with it: of two objects the one with the greater age was used earlier. */
void kvp_objindex_set_time(kvp_objindex_t *ix, uint64_t now_ns);
void kvp_obj_touch(kvp_objindex_t *ix, kvp_obj_t *o);
uint32_t kvp_obj_age(const kvp_objindex_t *ix, const kvp_obj_t *o);
/* kvp_objindex_mark is the clock now, kvp_obj_is_used_since: the last use came after that. */
uint32_t kvp_objindex_mark(const kvp_objindex_t *ix);
bool kvp_obj_is_used_since(const kvp_objindex_t *ix, const kvp_obj_t *o, uint32_t mark);

/* Lists. Push an object only while it is on no list of this kind; remove is legal for an object on
 * none. With several lists of a kind, the caller knows which one has the object. */
void kvp_objlist_init(kvp_objlist_t *list, kvp_objlist_kind_t kind);
void kvp_objlist_push_young(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
void kvp_objlist_push_behind(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t older,
                             uint32_t oid); /* KVP_OID_NONE: it is the oldest */
/* moves all, after the youngest */
void kvp_objlist_append(kvp_objindex_t *ix, kvp_objlist_t *list, kvp_objlist_t *from);
void kvp_objlist_remove(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);

/* kvp_objindex_step moves a few slots of a resize that is under way; true while there is more. */
bool kvp_objindex_step(kvp_objindex_t *ix);
uint64_t kvp_objindex_memory_bytes(const kvp_objindex_t *ix); /* records, table and keys */

#endif
