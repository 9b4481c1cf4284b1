/* SPDX-License-Identifier: Apache-2.0
 * Object records, their extensions and keys, the clock of uses, and lists of objects. The hash table is table.c. */
#include "master/core/catalog/index.h"

#include "common/hash.h"
#include "common/mutate.h"
#include "common/recpool.h"
#include "master/core/base/ages.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/keys.h"
#include "master/core/catalog/table.h"

#include <stdlib.h>

/* limit of object records: an extent's owner is an oid, or with the top bit set the number of a retire record */
#define OBJECTS_MAX (1u << 31)
#define CLOCK_SHIFT 25 /* the clock's unit is 2^25 ns */
#define CLOCK_AHEAD_MAX (1u << 20) /* number of units by which the clock of uses may run ahead of the time */

struct kvp_objindex {
    kvp_recpool_t records, exts;
    kvp_objtable_t table;
    kvp_keystore_t *keys;
    kvp_ages_t uses; /* the times of values of `clock` */
    uint64_t clock, time; /* clock of uses, and the time, in units of 2^CLOCK_SHIFT ns */
};

kvp_objindex_t *
kvp_objindex_create(uint64_t seed)
{
    kvp_objindex_t *ix = kvp_core_alloc(1, sizeof *ix);

    kvp_recpool_init(&ix->records, sizeof(kvp_obj_t), offsetof(kvp_obj_t, next), OBJECTS_MAX);
    kvp_recpool_init(&ix->exts, sizeof(kvp_objext_t), offsetof(kvp_objext_t, key), OBJECTS_MAX);
    kvp_objtable_init(&ix->table, &ix->records, seed);
    ix->keys = kvp_keystore_create(seed);
    return ix;
}

void
kvp_objindex_destroy(kvp_objindex_t *ix)
{
    uint32_t cursor = 0, left = UINT32_MAX, oid;

    if (ix == NULL) return;
    while ((oid = kvp_objindex_walk(ix, &cursor, UINT32_MAX, &left)) != KVP_OID_NONE)
        if (kvp_obj(ix, oid)->has_ext) free(kvp_obj_ext(ix, kvp_obj(ix, oid))->more);
    kvp_objtable_fini(&ix->table);
    kvp_recpool_fini(&ix->records);
    kvp_recpool_fini(&ix->exts);
    kvp_keystore_destroy(ix->keys);
    free(ix);
}

/* ---- records */
kvp_obj_t *
kvp_obj(kvp_objindex_t *ix, uint32_t oid)
{
    return kvp_recpool_at(&ix->records, oid);
}

uint32_t
kvp_obj_limit(const kvp_objindex_t *ix)
{
    return kvp_recpool_limit(&ix->records);
}

uint32_t
kvp_objindex_walk(kvp_objindex_t *ix, uint32_t *cursor, uint32_t end, uint32_t *left)
{
    end = (uint32_t)kvp_min_u64(end, kvp_obj_limit(ix));
    while (*left != 0 && *cursor < end) {
        uint32_t oid = *cursor;

        --*left;
        if (!kvp_recpool_was_made(&ix->records, oid)) {
            /* no later record of this block was ever used: continue at the next block */
            *cursor = (oid / KVP_RECPOOL_BLOCK + 1) * KVP_RECPOOL_BLOCK;
            continue;
        }
        ++*cursor;
        if (kvp_obj(ix, oid)->state != KVP_OBJ_NONE) return oid;
    }
    return KVP_OID_NONE;
}

uint64_t
kvp_objindex_id(const kvp_objindex_t *ix, kvp_digest_t digest)
{
    return kvp_objtable_id(&ix->table, digest);
}

uint32_t
kvp_objindex_make(kvp_objindex_t *ix, kvp_digest_t digest, const void *key, uint16_t key_len,
                  const kvp_wire_lineage_t *lineage)
{
    uint32_t oid = kvp_recpool_take(&ix->records);

    if (oid == KVP_RECPOOL_NONE) kvp_panic("out of memory: %u objects", kvp_obj_limit(ix));
    *kvp_obj(ix, oid) = (kvp_obj_t){
        .id = kvp_objindex_id(ix, digest),
        .attempt = UINT32_MAX,
        .key = kvp_keystore_add(ix->keys, key, key_len, lineage),
        .chunk = KVP_OBJ_CHUNK_NONE,
        .state = KVP_OBJ_WRITING,
    };
    return oid;
}

void
kvp_objindex_link(kvp_objindex_t *ix, uint32_t oid, kvp_digest_t digest)
{
    kvp_objtable_add(&ix->table, digest, oid);
}

void
kvp_objindex_unlink(kvp_objindex_t *ix, uint32_t oid)
{
    kvp_objtable_del(&ix->table, oid);
}

static uint32_t
key_of(const kvp_objindex_t *ix, const kvp_obj_t *o)
{
    return o->has_ext ? kvp_obj_ext(ix, o)->key : o->key;
}

void
kvp_objindex_free(kvp_objindex_t *ix, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ix, oid);

    if (o->list != KVP_OBJLIST_NONE) kvp_panic("object %u is freed and on a list", oid);
    kvp_keystore_del(ix->keys, key_of(ix, o));
    if (o->has_ext) {
        free(kvp_obj_ext(ix, o)->more);
        kvp_recpool_give(&ix->exts, o->key);
    }
    *o = (kvp_obj_t){.state = KVP_OBJ_NONE};
    kvp_recpool_give(&ix->records, oid);
}

uint32_t
kvp_objindex_find(kvp_objindex_t *ix, kvp_digest_t digest)
{
    return kvp_objtable_find(&ix->table, digest);
}

void
kvp_objindex_find_many(kvp_objindex_t *ix, const kvp_digest_t *digests, size_t n, uint32_t *oids)
{
    kvp_objtable_find_many(&ix->table, digests, n, oids);
}

bool
kvp_objindex_step(kvp_objindex_t *ix)
{
    return kvp_objtable_step(&ix->table);
}

uint64_t
kvp_objindex_memory_bytes(const kvp_objindex_t *ix)
{
    return ix->records.memory_bytes + ix->exts.memory_bytes + ix->table.memory_bytes +
           kvp_keystore_memory_bytes(ix->keys);
}

/* ---- keys */
uint16_t
kvp_obj_key_len(const kvp_objindex_t *ix, const kvp_obj_t *o)
{
    return kvp_keystore_len(ix->keys, key_of(ix, o));
}

bool
kvp_obj_has_key(const kvp_objindex_t *ix, const kvp_obj_t *o, const void *key, size_t len)
{
    return kvp_keystore_equals(ix->keys, key_of(ix, o), key, len) || !KVP_RULE(KEY_COMPARE);
}

uint16_t
kvp_obj_key_copy(const kvp_objindex_t *ix, const kvp_obj_t *o, uint8_t *buf)
{
    return kvp_keystore_copy(ix->keys, key_of(ix, o), buf);
}

kvp_wire_lineage_t
kvp_obj_lineage(const kvp_objindex_t *ix, const kvp_obj_t *o)
{
    return kvp_keystore_lineage(ix->keys, key_of(ix, o));
}

kvp_digest_t
kvp_obj_digest(const kvp_objindex_t *ix, const kvp_obj_t *o, uint64_t pool_seed, uint32_t tenant)
{
    uint8_t key[KVP_KEY_MAX];
    uint16_t len = kvp_obj_key_copy(ix, o, key);

    return kvp_key_digest(pool_seed, tenant, key, len);
}

/* ---- extensions */
kvp_objext_t *
kvp_obj_ext(const kvp_objindex_t *ix, const kvp_obj_t *o)
{
    return o->has_ext ? kvp_recpool_at(&ix->exts, o->key) : NULL;
}

kvp_objext_t *
kvp_obj_ext_make(kvp_objindex_t *ix, kvp_obj_t *o)
{
    kvp_objext_t *ext;
    uint32_t number;

    if (o->has_ext) return kvp_obj_ext(ix, o);
    number = kvp_recpool_take(&ix->exts);
    if (number == KVP_RECPOOL_NONE) kvp_panic("out of memory: %u extended objects", kvp_recpool_limit(&ix->exts));
    ext = kvp_recpool_at(&ix->exts, number);
    *ext = (kvp_objext_t){.key = o->key, .long_key_slot = KVP_SLAB_NONE, .replacement = KVP_OID_NONE};
    o->key = number;
    o->has_ext = 1;
    return ext;
}

/* ---- use */
void
kvp_objindex_set_time(kvp_objindex_t *ix, uint64_t now_ns)
{
    ix->time = now_ns >> CLOCK_SHIFT;
    ix->clock = kvp_max_u64(ix->clock, ix->time);
    kvp_ages_note(&ix->uses, ix->clock, now_ns);
}

void
kvp_obj_touch(kvp_objindex_t *ix, kvp_obj_t *o)
{
    if (ix->clock - ix->time < CLOCK_AHEAD_MAX) ix->clock++;
    o->used = (uint32_t)ix->clock;
    o->is_used_since = 1;
}

uint32_t
kvp_obj_age(const kvp_objindex_t *ix, const kvp_obj_t *o)
{
    return (uint32_t)ix->clock - o->used;
}

uint64_t
kvp_obj_idle_ms(const kvp_objindex_t *ix, const kvp_obj_t *o, uint64_t now_ns)
{
    return kvp_ages_age(&ix->uses, ix->clock - kvp_obj_age(ix, o), now_ns) / 1000000u;
}

uint32_t
kvp_objindex_mark(const kvp_objindex_t *ix)
{
    return (uint32_t)ix->clock;
}

bool
kvp_obj_is_used_since(const kvp_objindex_t *ix, const kvp_obj_t *o, uint32_t mark)
{
    return kvp_obj_age(ix, o) < (uint32_t)ix->clock - mark;
}

/* ---- lists */
void
kvp_objlist_init(kvp_objlist_t *list, kvp_objlist_kind_t kind)
{
    *list = (kvp_objlist_t){.kind = kind, .oldest = KVP_OID_NONE, .youngest = KVP_OID_NONE};
}

/* Inserts the object into the list between prev and next (KVP_OID_NONE = the list's end). */
static void
list_link(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t prev, uint32_t next, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ix, oid);

    if (o->list != KVP_OBJLIST_NONE) kvp_panic("object %u is on a list already", oid);
    o->list = list->kind & 7u;
    o->prev = prev;
    o->next = next;
    if (prev != KVP_OID_NONE)
        kvp_obj(ix, prev)->next = oid;
    else
        list->oldest = oid;
    if (next != KVP_OID_NONE)
        kvp_obj(ix, next)->prev = oid;
    else
        list->youngest = oid;
    list->n++;
}

void
kvp_objlist_push_young(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid)
{
    list_link(ix, list, list->youngest, KVP_OID_NONE, oid);
}

void
kvp_objlist_push_behind(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t older, uint32_t oid)
{
    list_link(ix, list, older, older == KVP_OID_NONE ? list->oldest : kvp_obj(ix, older)->next, oid);
}

void
kvp_objlist_append(kvp_objindex_t *ix, kvp_objlist_t *list, kvp_objlist_t *from)
{
    if (from->n == 0) return;
    if (list->n == 0) {
        list->oldest = from->oldest;
    } else {
        kvp_obj(ix, list->youngest)->next = from->oldest;
        kvp_obj(ix, from->oldest)->prev = list->youngest;
    }
    list->youngest = from->youngest;
    list->n += from->n;
    kvp_objlist_init(from, from->kind);
}

void
kvp_objlist_remove(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ix, oid);

    if (o->list != list->kind) return;
    if (o->prev != KVP_OID_NONE)
        kvp_obj(ix, o->prev)->next = o->next;
    else
        list->oldest = o->next;
    if (o->next != KVP_OID_NONE)
        kvp_obj(ix, o->next)->prev = o->prev;
    else
        list->youngest = o->prev;
    o->list = KVP_OBJLIST_NONE;
    list->n--;
}
