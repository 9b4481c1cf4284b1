/* SPDX-License-Identifier: Apache-2.0
 * The index: digest -> object record. Records lie in blocks that never move; an object is named by its number (oid).
 * The hash table grows and shrinks a few slots at a time, so no insert takes long, and memory is freed as objects are
 * removed. A record is 56 bytes. Fields that most objects do not need are in an extension, made on demand; derived
 * values are computed (kvp_obj_len and kvp_obj_place in catalog/replica.h, kvp_obj_digest). */
#ifndef KVP_MASTER_CORE_CATALOG_INDEX_H
#define KVP_MASTER_CORE_CATALOG_INDEX_H

#include "common/hash.h"
#include "proto/wire.h"

#define KVP_OID_NONE UINT32_MAX
#define KVP_OBJ_CHUNK_NONE 0xffffffu /* kvp_obj_t.chunk of an object without a place; above all chunk numbers */
#define KVP_OBJ_TICKETS_MAX 0x7fffu
#define KVP_OBJ_TIER_LEN_BITS 40 /* the payload of an object that is only on a tier has less than 2^40 bytes */

typedef enum {
    KVP_OBJ_NONE = 0, /* the record is free */
    KVP_OBJ_WRITING, /* a put attempt is writing the object */
    KVP_OBJ_COMMITTED,
    KVP_OBJ_GONE, /* the object was removed from the index; its record stays until the last ticket ends */
    KVP_OBJ_STAGED, /* the object is being written; it will replace a committed object, which is in the index instead */
} kvp_obj_state_t;

/* The kind of list on which an object is; a record has three bits for it. */
typedef enum {
    KVP_OBJLIST_NONE = 0,
    KVP_OBJLIST_LRU,
    KVP_OBJLIST_PARKED, /* objects that eviction skips, because their node does not answer: protect/candidates.c */
    KVP_OBJLIST_PROBED, /* protected from eviction by a recent probe of a client: protect/probe.c */
    KVP_OBJLIST_PINNED, /* softly pinned: protect/pin.c */
    KVP_OBJLIST_COLD, /* loaded from the tier, and not used again since then: protect/candidates.c */
} kvp_objlist_kind_t;

typedef struct kvp_obj {
    uint64_t id; /* 64 bits of the mixed digest: kvp_objindex_id */
    uint64_t sum;
    /* The object's version; also the generation of its extent, unless the extension has another. 0 = no extent yet. */
    uint64_t generation;
    union {
        uint32_t prev; /* on a list: the next older object */
        uint32_t attempt; /* in state WRITING: number of the put attempt */
    };
    uint32_t next; /* on a list: the next younger object */
    uint32_t used; /* time of the last use, by the index's clock: kvp_obj_age */
    uint32_t key; /* number of the key in the key store; if has_ext, number of the extension */
    uint64_t chunk : 24; /* chunk of the first copy: its number in catalog->chunks, or KVP_OBJ_CHUNK_NONE */
    /* slot of the first copy's extent; if the object is only on a tier, slot and slack are the payload's length */
    uint64_t slot : 24;
    uint64_t slack : 16; /* bytes between the payload's end and the extent's end */
    uint16_t probe_since, probe_until; /* if has_probe: first and last tick of the probes' protection */
    uint16_t tickets : 15; /* number of clients' holds and reservations; > 0 = the object must not be evicted */
    /* flag: the object was used since its put, since its last write to a tier, and since the tier last kept it */
    uint16_t is_used_since : 1;
    uint16_t state : 3;
    uint16_t list : 3; /* kvp_objlist_kind_t */
    uint16_t has_ext : 1;
    uint16_t has_probe : 1; /* flag: a probe of this object was recorded */
    uint16_t is_asking_counted : 1; /* flag: a probe, look-up or load was counted as a use, and no other use followed */
    uint16_t is_beyond_share : 1; /* flag: the last probe was over the limit of one message, and protects nothing */
    uint16_t pin : 2; /* kvp_pin_t of a committed object */
    uint16_t is_fresh : 1; /* flag: the log record of its commit is not known to be durable */
    uint16_t is_on_tier : 1; /* flag: this version is on its node's SSD tier, also or only there: kvp_obj_tier */
    uint16_t is_moving : 1; /* flag: the object is being written to its tier or loaded from it: space/tier.c */
    uint16_t is_ahead : 1; /* flag: the object's bytes are counted in its tenant's ahead_bytes: evict/ahead.c */
} kvp_obj_t;

_Static_assert(sizeof(kvp_obj_t) == 56, "a record costs 56 bytes");

/* The place of one copy of an object in memory. */
typedef struct {
    uint32_t chunk; /* number in the catalog's chunk table; KVP_OID_NONE = no place */
    uint32_t slot;
    uint64_t generation;
    uint32_t long_key_slot; /* slot in the chunk's long-key allocator; KVP_SLAB_NONE = the key is in its key cell */
} kvp_place_t;

/* Fields of an object that few objects need. Made with kvp_obj_ext_make; freed with the object. */
typedef struct {
    uint32_t key; /* number of the key in the key store, in place of kvp_obj_t.key */
    uint32_t long_key_slot; /* slot of the first copy's key in its chunk's long-key allocator; KVP_SLAB_NONE = none */
    uint64_t generation; /* generation of the first copy's extent, if it differs from the version; else 0 */
    uint64_t leaving; /* generation of the copy that is being dropped after a move: protect/leaving.h; 0 = none */
    kvp_place_t *more; /* all copies but the first, owned */
    uint32_t more_n;
    uint32_t replacement; /* the staged version that will replace this object; KVP_OID_NONE = none */
    struct kvp_member *member; /* the object's membership in a group: catalog/member.h; NULL = no group */
} kvp_objext_t;

/* A list of objects from the oldest to the youngest, linked through their records. The list's kind decides the order:
 * by last use, by first probe, or as parked. An object is on one list at most. */
typedef struct {
    kvp_objlist_kind_t kind;
    uint32_t oldest, youngest; /* KVP_OID_NONE = empty */
    uint32_t n;
} kvp_objlist_t;

typedef struct kvp_objindex kvp_objindex_t;

/* kvp_objindex_create: seed is a secret that determines where digests and keys lie in the tables. */
kvp_objindex_t *kvp_objindex_create(uint64_t seed);
void kvp_objindex_destroy(kvp_objindex_t *ix);

/* kvp_obj returns the record of an oid in use. Borrowed until kvp_objindex_free; the record never moves. */
kvp_obj_t *kvp_obj(kvp_objindex_t *ix, uint32_t oid);
/* kvp_obj_limit returns a number above every oid in use. kvp_objindex_walk returns the next oid in use from *cursor
 * on and below `end`, and advances *cursor; *left counts down the examined records. Returns KVP_OID_NONE if *left is
 * 0, or if no oid is left; in the second case *cursor is above every oid in use, or at `end` or above. */
uint32_t kvp_obj_limit(const kvp_objindex_t *ix);
uint32_t kvp_objindex_walk(kvp_objindex_t *ix, uint32_t *cursor, uint32_t end, uint32_t *left);

/* kvp_objindex_id returns the part of the digest that the record keeps: 64 mixed bits that no client can choose. */
uint64_t kvp_objindex_id(const kvp_objindex_t *ix, kvp_digest_t digest);
/* kvp_objindex_find returns the oid of the digest, or KVP_OID_NONE. kvp_objindex_find_many looks up n digests
 * together, which hides memory latency; oids has room for n. */
uint32_t kvp_objindex_find(kvp_objindex_t *ix, kvp_digest_t digest);
void kvp_objindex_find_many(kvp_objindex_t *ix, const kvp_digest_t *digests, size_t n, uint32_t *oids);

/* kvp_objindex_make makes a record outside of the index (state WRITING, no place) with a copy of the key and its
 * lineage (NULL = none). kvp_objindex_link puts the record into the index under its digest, which must be absent.
 * kvp_objindex_unlink removes the record from the index; the record stays. kvp_objindex_free frees the record, its
 * key and its extension: the record must be out of the index and on no list. */
uint32_t kvp_objindex_make(kvp_objindex_t *ix, kvp_digest_t digest, const void *key, uint16_t key_len,
                           const kvp_wire_lineage_t *lineage);
void kvp_objindex_link(kvp_objindex_t *ix, uint32_t oid, kvp_digest_t digest);
void kvp_objindex_unlink(kvp_objindex_t *ix, uint32_t oid);
void kvp_objindex_free(kvp_objindex_t *ix, uint32_t oid);

/* kvp_obj_key_len returns the length of the object's key. kvp_obj_has_key returns true if the key is equal to these
 * bytes. kvp_obj_key_copy copies the key to buf (room for KVP_KEY_MAX bytes) and returns its length. */
uint16_t kvp_obj_key_len(const kvp_objindex_t *ix, const kvp_obj_t *o);
bool kvp_obj_has_key(const kvp_objindex_t *ix, const kvp_obj_t *o, const void *key, size_t len);
uint16_t kvp_obj_key_copy(const kvp_objindex_t *ix, const kvp_obj_t *o, uint8_t *buf);
kvp_wire_lineage_t kvp_obj_lineage(const kvp_objindex_t *ix, const kvp_obj_t *o);
/* kvp_obj_digest computes the whole digest again, from the object's key. */
kvp_digest_t kvp_obj_digest(const kvp_objindex_t *ix, const kvp_obj_t *o, uint64_t pool_seed, uint32_t tenant);

/* kvp_obj_ext returns the record's extension; NULL = it has none. kvp_obj_ext_make makes the extension if there is
 * none, zeroed except for fields whose empty value is not 0. Borrowed until kvp_objindex_free. */
kvp_objext_t *kvp_obj_ext(const kvp_objindex_t *ix, const kvp_obj_t *o);
kvp_objext_t *kvp_obj_ext_make(kvp_objindex_t *ix, kvp_obj_t *o);

/* The clock of uses is a 32-bit number that follows time, in units of 2^25 ns (34 ms). Each use advances the clock by
 * one, unless it is too far ahead of time: then uses within 34 ms share a number. An age is right up to four years.
 * kvp_obj_touch sets the object's last use to now. kvp_obj_age returns the time since the last use: of two objects, the
 * object with the greater age was used earlier. */
void kvp_objindex_set_time(kvp_objindex_t *ix, uint64_t now_ns);
void kvp_obj_touch(kvp_objindex_t *ix, kvp_obj_t *o);
uint32_t kvp_obj_age(const kvp_objindex_t *ix, const kvp_obj_t *o);
/* kvp_obj_idle_ms returns the milliseconds since the last use, with an error of at most a second or a hundredth of the
 * time; 0 = less than that, or before this process began. The clock runs ahead of time, but its values at known times
 * are kept. */
uint64_t kvp_obj_idle_ms(const kvp_objindex_t *ix, const kvp_obj_t *o, uint64_t now_ns);
/* kvp_objindex_mark returns the clock's present value. kvp_obj_is_used_since returns true if the object's last use
 * came after the mark. */
uint32_t kvp_objindex_mark(const kvp_objindex_t *ix);
bool kvp_obj_is_used_since(const kvp_objindex_t *ix, const kvp_obj_t *o, uint32_t mark);

/* Lists of objects. An object to push must be on no list. kvp_objlist_remove has no effect on an object that is on no
 * list of this kind. If there are several lists of a kind, the caller must know which list has the object. */
void kvp_objlist_init(kvp_objlist_t *list, kvp_objlist_kind_t kind);
void kvp_objlist_push_young(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);
void kvp_objlist_push_behind(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t older,
                             uint32_t oid); /* inserts oid into the list after `older`; KVP_OID_NONE = at the old end */
/* moves all objects of `from`, a list of the same kind, to the young end of `list` */
void kvp_objlist_append(kvp_objindex_t *ix, kvp_objlist_t *list, kvp_objlist_t *from);
void kvp_objlist_remove(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid);

/* kvp_objindex_step moves a few buckets of a running resize of the table; returns true while buckets are left. */
bool kvp_objindex_step(kvp_objindex_t *ix);
uint64_t kvp_objindex_memory_bytes(const kvp_objindex_t *ix); /* bytes of records, table and keys */

#endif
