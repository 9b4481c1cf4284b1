/* SPDX-License-Identifier: Apache-2.0
 * The log's records as KV events: see stream.h. */
#include "master/events/stream.h"

#include "common/log.h"
#include "common/utf8.h"
#include "proto/connkey.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CPU 1u
#define DISK 2u
#define MEDIA 2u
static const char *const media[MEDIA] = {"cpu", "disk"};

/* The value of an object in stream->held: its media, the index of its tenant, and that tenant's count of clears when
 * the object was published. The highest bit keeps the value non-zero. */
#define VAL_IS (1ull << 63)
#define VAL_TENANT_BITS 24u
#define TENANTS_MAX (1u << VAL_TENANT_BITS)

typedef struct {
    uint32_t id;
    uint32_t clears;
    uint64_t min_version; /* min_version of the tenant's last bump; 0 = none */
    uint64_t event_ids[MEDIA]; /* number of the last event of each medium's stream */
    char name[KVP_TENANT_NAME_MAX + 1];
} tenant_t;

typedef struct {
    uint32_t tenant;
    uint64_t hash; /* hash of tenant and prefix, for look-up */
    char *prefix; /* owned */
    uint64_t counts[KVP_EVENT_RANGES], sums[KVP_EVENT_RANGES];
} prefix_t;

struct kvp_stream {
    const char *backend;
    bool is_legacy;
    kvp_digestmap_t held;
    tenant_t *tenants;
    uint32_t tenants_n, tenants_cap, tenant_last; /* tenant_last: the last result of tenant_of */
    prefix_t prefixes[KVP_EVENT_PREFIXES_MAX];
    uint32_t prefixes_n;
};

/* ---- tenants */
static uint32_t
tenant_of(kvp_stream_t *s, uint32_t id)
{
    uint32_t cap = s->tenants_cap * 2 + 16;
    tenant_t *more;

    if (s->tenant_last < s->tenants_n && s->tenants[s->tenant_last].id == id) return s->tenant_last;
    for (uint32_t i = 0; i < s->tenants_n; i++)
        if (s->tenants[i].id == id) return s->tenant_last = i;
    if (s->tenants_n == s->tenants_cap) {
        more = s->tenants_n < TENANTS_MAX ? realloc(s->tenants, cap * sizeof *more) : NULL;
        if (more == NULL) kvp_panic("out of memory: tenants of events");
        s->tenants = more;
        s->tenants_cap = cap;
    }
    s->tenants[s->tenants_n] = (tenant_t){.id = id, .name = "default"};
    return s->tenants_n++;
}

/* ---- the published places of objects */
static uint64_t
val_of(const kvp_stream_t *s, uint32_t tenant, uint32_t at)
{
    return VAL_IS | (uint64_t)(s->tenants[tenant].clears & UINT32_MAX >> 1) << (VAL_TENANT_BITS + 2) | tenant << 2 | at;
}

/* Returns the media of an object's value in the map; 0 if its tenant was cleared since. */
static uint32_t
media_of(const kvp_stream_t *s, uint64_t val, uint32_t *tenant_out)
{
    *tenant_out = (uint32_t)(val >> 2) & (TENANTS_MAX - 1);
    return val_of(s, *tenant_out, val & 3u) == val ? val & 3u : 0;
}

static prefix_t *
prefix_of(kvp_stream_t *s, uint32_t tenant, const uint8_t *key, size_t len)
{
    const uint64_t hash = XXH3_64bits_withSeed(key, len, tenant);
    prefix_t *p;

    for (uint32_t i = 0; i < s->prefixes_n; i++) {
        p = &s->prefixes[i];
        if (p->hash == hash && p->tenant == tenant && strlen(p->prefix) == len && memcmp(p->prefix, key, len) == 0)
            return p;
    }
    if (s->prefixes_n == KVP_EVENT_PREFIXES_MAX) return NULL;
    p = &s->prefixes[s->prefixes_n];
    *p = (prefix_t){.tenant = tenant, .hash = hash, .prefix = strndup((const char *)key, len)};
    if (p->prefix == NULL) kvp_panic("out of memory: prefixes of events");
    s->prefixes_n++;
    return p;
}

/* ---- events */
static int
append_bytes(void *to, const char *bytes, size_t len)
{
    kvp_buf_append(to, bytes, len);
    return 0;
}

static void
pack_text(msgpack_packer *pk, const char *text, size_t len)
{
    msgpack_pack_str(pk, len);
    msgpack_pack_str_body(pk, text, len);
}

#define NAME(pk, name) pack_text(pk, name, sizeof(name) - 1)

static void
pack_name(msgpack_packer *pk, const char *name, const char *value)
{
    pack_text(pk, name, strlen(name));
    if (value == NULL)
        msgpack_pack_nil(pk);
    else
        pack_text(pk, value, strlen(value));
}

typedef struct {
    const uint8_t *key;
    size_t key_len;
    const kvp_wire_lineage_t *lineage; /* NULL = none */
    const kvp_wire_group_t *group; /* NULL = unknown */
    bool has_parts; /* flag: the key was made by a connector and is text; the key's fields are in `parts` */
    kvp_connkey_t parts;
} subject_t;

/* Parses the fields of a connector's key. */
static void
read_key(subject_t *o)
{
    o->has_parts = memchr(o->key, '\0', o->key_len) == NULL && kvp_is_utf8(o->key, o->key_len) &&
                   kvp_connkey_read((const char *)o->key, o->key_len, &o->parts);
}

/* Updates the sums of the key's prefix for an object that was added to or removed from media. Only connectors' keys
 * that are text have a prefix: the readers of digests leave other keys out, too. */
static void
add_up(kvp_stream_t *s, uint32_t tenant, const subject_t *o, uint32_t came, uint32_t left)
{
    const uint64_t hash = XXH3_64bits(o->key, o->key_len);
    const uint32_t range = (uint32_t)(hash % KVP_EVENT_RANGES);
    prefix_t *p = o->has_parts ? prefix_of(s, tenant, o->key, o->parts.prefix_len) : NULL;

    if (p == NULL) return;
    for (uint32_t i = 0; i < MEDIA; i++) {
        if (((came | left) & 1u << i) == 0) continue;
        p->counts[range] += (came & 1u << i) != 0 ? 1 : UINT64_MAX;
        p->sums[range] ^= XXH3_64bits_withSeed(&hash, sizeof hash, i + 1);
    }
}

/* Packs the fields that every event has: 11, and one more with legacy names. o NULL = the event is about no object. */
static void
pack_envelope(const kvp_stream_t *s, msgpack_packer *pk, const char *type, const char *legacy, uint64_t event_id,
              const char *tenant, const char *medium, const subject_t *o, uint64_t now_ms)
{
    NAME(pk, "event_id");
    msgpack_pack_uint64(pk, event_id);
    NAME(pk, "timestamp");
    msgpack_pack_uint64(pk, now_ms);
    pack_name(pk, "event_type", type);
    if (s->is_legacy) pack_name(pk, "type", legacy);
    NAME(pk, "model_name");
    if (o != NULL && o->has_parts && o->parts.prefix_len > o->parts.model_at)
        pack_text(pk, (const char *)o->key + o->parts.model_at, o->parts.prefix_len - o->parts.model_at);
    else
        msgpack_pack_nil(pk);
    pack_name(pk, "block_size", NULL);
    pack_name(pk, "additional_salt", NULL);
    pack_name(pk, "lora_name", NULL);
    pack_name(pk, "tenant_id", tenant);
    pack_name(pk, "backend_id", s->backend);
    pack_name(pk, "medium", medium);
    NAME(pk, "dp_rank");
    msgpack_pack_uint8(pk, 0);
}
#define ENVELOPE_FIELDS 11u

/* Packs the block's hash: the lineage's, or the last 64 bits of the hash in a connector's key. */
static void
pack_hashes(msgpack_packer *pk, const char *name, const subject_t *o)
{
    const bool has_hash = o->lineage != NULL || o->has_parts;

    pack_text(pk, name, strlen(name));
    msgpack_pack_array(pk, has_hash);
    if (has_hash) msgpack_pack_uint64(pk, o->lineage != NULL ? o->lineage->sequence : o->parts.hash);
}

static void
pack_parent(msgpack_packer *pk, const char *name, const kvp_wire_lineage_t *lineage)
{
    pack_text(pk, name, strlen(name));
    if (lineage != NULL && lineage->depth > 0)
        msgpack_pack_uint64(pk, lineage->parent);
    else
        msgpack_pack_nil(pk);
}

/* Packs the fields that are found in a connector's key, and returns their number. pk NULL: only counts them. */
static uint32_t
pack_parts(msgpack_packer *pk, const subject_t *o)
{
    uint32_t n = 0;

    if (!o->has_parts) return 0;
    if (o->parts.model_at > 0) {
        n++;
        if (pk != NULL) {
            NAME(pk, "cache_prefix");
            pack_text(pk, (const char *)o->key, o->parts.model_at - 1);
        }
    }
#define PACK(name, text)                                                                                               \
    if (o->parts.name != KVP_CONNKEY_NONE) {                                                                           \
        n++;                                                                                                           \
        if (pk != NULL) {                                                                                              \
            NAME(pk, #name);                                                                                           \
            msgpack_pack_uint32(pk, o->parts.name);                                                                    \
        }                                                                                                              \
    }
    KVP_CONNKEY_NUMBERS(PACK)
#undef PACK
    return n;
}

static void
pack_object(msgpack_packer *pk, const subject_t *o)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[sizeof(kvp_digest_t)];
    char group[2 * sizeof digest];

    NAME(pk, "object_key");
    if (kvp_is_utf8(o->key, o->key_len)) {
        pack_text(pk, (const char *)o->key, o->key_len);
    } else {
        msgpack_pack_bin(pk, o->key_len);
        msgpack_pack_bin_body(pk, o->key, o->key_len);
    }
    NAME(pk, "connector_block_hash");
    if (o->has_parts)
        pack_text(pk, o->parts.hex, o->parts.hex_len);
    else
        msgpack_pack_nil(pk);
    NAME(pk, "group_id");
    if (o->group == NULL || (o->group->group.lo | o->group->group.hi) == 0) {
        msgpack_pack_nil(pk);
    } else {
        memcpy(digest, &o->group->group, sizeof digest);
        for (size_t i = 0; i < sizeof digest; i++) {
            group[2 * i] = digits[digest[i] >> 4];
            group[2 * i + 1] = digits[digest[i] & 15];
        }
        pack_text(pk, group, sizeof group);
    }
    (void)pack_parts(pk, o);
    pack_hashes(pk, "seq_hashes", o);
    NAME(pk, "base_block_idx");
    if (o->lineage != NULL)
        msgpack_pack_uint32(pk, o->lineage->depth);
    else
        msgpack_pack_nil(pk);
}
#define OBJECT_FIELDS 5u

static void
pack_event(kvp_stream_t *s, uint32_t tenant, uint32_t medium, const subject_t *o, bool is_stored, bool is_live,
           uint64_t now_ms, kvp_event_batch_t *batch)
{
    tenant_t *t = &s->tenants[tenant];
    const bool is_legacy = s->is_legacy;
    msgpack_packer pk;

    if (is_live) t->event_ids[medium]++;
    msgpack_packer_init(&pk, &batch->bytes, append_bytes);
    msgpack_pack_map(&pk, ENVELOPE_FIELDS + OBJECT_FIELDS + pack_parts(NULL, o) + (is_legacy ? 2 : 0) +
                              (is_stored ? 2 + is_legacy : 0));
    pack_envelope(s, &pk, is_stored ? "stored" : "removed", is_stored ? "BlockStored" : "BlockRemoved",
                  t->event_ids[medium], t->name, media[medium], o, now_ms);
    pack_object(&pk, o);
    if (is_legacy) pack_hashes(&pk, "block_hashes", o);
    if (is_stored) {
        pack_parent(&pk, "parent_hash", o->lineage);
        pack_name(&pk, "token_ids", NULL);
        if (is_legacy) pack_parent(&pk, "parent_block_hash", o->lineage);
    }
    batch->n++;
}

/* ---- records */
static void
take_commit(kvp_stream_t *s, const kvp_jrec_any_t *rec, kvp_stream_mode_t mode, uint64_t now_ms,
            kvp_event_batch_t *batch)
{
    /* kvp_jrec_places and others take no const record, because writers use them, too */
    kvp_jrec_any_t *any = (kvp_jrec_any_t *)rec;
    const kvp_jrec_place_t *places = kvp_jrec_places(any);
    subject_t o = {.key = kvp_jrec_key(any),
                   .key_len = rec->commit.key_len,
                   .lineage = kvp_jrec_lineage(any),
                   .group = &rec->commit.group};
    const uint32_t tenant = tenant_of(s, rec->commit.tenant);
    uint32_t now = 0, was, whose;
    uint64_t *val = kvp_digestmap_insert(&s->held, rec->commit.digest);

    if (val == NULL) kvp_panic("out of memory: objects of events");
    for (uint32_t i = 0; i < rec->commit.places_n; i++)
        now |= places[i].chunk == KVP_JREC_TIER ? DISK : CPU;
    was = *val == 0 ? 0 : media_of(s, *val, &whose);
    *val = val_of(s, tenant, now);
    read_key(&o);
    add_up(s, tenant, &o, now & ~was, was & ~now);
    if (mode == KVP_STREAM_PRIME) return;
    for (uint32_t i = 0; i < MEDIA; i++) {
        const uint32_t bit = 1u << i;

        if (mode == KVP_STREAM_SNAPSHOT && (now & bit) != 0) pack_event(s, tenant, i, &o, true, false, now_ms, batch);
        if (mode == KVP_STREAM_LIVE && ((now ^ was) & bit) != 0)
            pack_event(s, tenant, i, &o, (now & bit) != 0, true, now_ms, batch);
    }
}

/* Handles the record of a removal. Without a key it makes no event: the removal was published before, or the object is
 * being replaced. */
static void
take_gone(kvp_stream_t *s, const kvp_jrec_any_t *rec, kvp_stream_mode_t mode, uint64_t now_ms, kvp_event_batch_t *batch)
{
    kvp_jrec_any_t *any = (kvp_jrec_any_t *)rec;
    subject_t o = {.key = kvp_jrec_gone_key(any), .key_len = rec->gone.key_len, .lineage = kvp_jrec_gone_lineage(any)};
    const uint64_t *val = o.key_len == 0 ? NULL : kvp_digestmap_at(&s->held, rec->gone.digest);
    uint32_t tenant, was;

    if (val == NULL) return;
    was = media_of(s, *val, &tenant);
    kvp_digestmap_remove(&s->held, rec->gone.digest);
    read_key(&o);
    add_up(s, tenant, &o, 0, was);
    for (uint32_t i = 0; i < MEDIA; i++)
        if ((was & 1u << i) != 0 && mode == KVP_STREAM_LIVE) pack_event(s, tenant, i, &o, false, true, now_ms, batch);
}

/* Handles a bump: all objects of the tenant count as removed now. Later records of their removal make no events. */
static void
clear_tenant(kvp_stream_t *s, uint32_t tenant, kvp_stream_mode_t mode, uint64_t now_ms, kvp_event_batch_t *batch)
{
    tenant_t *t = &s->tenants[tenant];
    msgpack_packer pk;

    t->clears++;
    for (uint32_t i = 0; i < s->prefixes_n; i++) {
        if (s->prefixes[i].tenant != tenant) continue;
        memset(s->prefixes[i].counts, 0, sizeof s->prefixes[i].counts);
        memset(s->prefixes[i].sums, 0, sizeof s->prefixes[i].sums);
    }
    for (uint32_t i = 0; i < MEDIA && mode == KVP_STREAM_LIVE; i++) {
        msgpack_packer_init(&pk, &batch->bytes, append_bytes);
        msgpack_pack_map(&pk, ENVELOPE_FIELDS + s->is_legacy);
        pack_envelope(s, &pk, "cleared", "AllBlocksCleared", ++t->event_ids[i], t->name, media[i], NULL, now_ms);
        batch->n++;
    }
}

static void
take_tenant(kvp_stream_t *s, const kvp_jrec_tenant_t *rec, kvp_stream_mode_t mode, uint64_t now_ms,
            kvp_event_batch_t *batch)
{
    const uint32_t at = tenant_of(s, rec->tenant);
    tenant_t *t = &s->tenants[at];
    const bool is_bump = rec->epoch > 0 && rec->min_version > t->min_version;

    if (rec->name[0] != '\0') memcpy(t->name, rec->name, sizeof t->name);
    t->name[sizeof t->name - 1] = '\0';
    t->min_version = is_bump ? rec->min_version : t->min_version;
    if (is_bump) clear_tenant(s, at, mode, now_ms, batch);
}

void
kvp_stream_take(kvp_stream_t *s, const kvp_jrec_any_t *rec, kvp_stream_mode_t mode, uint64_t now_ms,
                kvp_event_batch_t *batch)
{
    switch (rec->head.kind) {
    case KVP_JREC_COMMIT:
        take_commit(s, rec, mode, now_ms, batch);
        break;
    case KVP_JREC_GONE:
        take_gone(s, rec, mode, now_ms, batch);
        break;
    case KVP_JREC_TENANT:
        take_tenant(s, &rec->tenant, mode, now_ms, batch);
        break;
    default:
        break;
    }
}

static void
pack_numbers(msgpack_packer *pk, const char *name, const uint64_t *numbers)
{
    pack_text(pk, name, strlen(name));
    msgpack_pack_array(pk, KVP_EVENT_RANGES);
    for (uint32_t i = 0; i < KVP_EVENT_RANGES; i++)
        msgpack_pack_uint64(pk, numbers[i]);
}

void
kvp_stream_digests(kvp_stream_t *s, uint64_t now_ms, kvp_event_batch_t *batch)
{
    msgpack_packer pk;

    for (uint32_t i = 0; i < s->prefixes_n; i++) {
        const prefix_t *p = &s->prefixes[i];

        msgpack_packer_init(&pk, &batch->bytes, append_bytes);
        msgpack_pack_map(&pk, ENVELOPE_FIELDS + s->is_legacy + 3);
        pack_envelope(s, &pk, "digest", "Digest", 0, s->tenants[p->tenant].name, NULL, NULL, now_ms);
        pack_name(&pk, "key_prefix", p->prefix);
        pack_numbers(&pk, "counts", p->counts);
        pack_numbers(&pk, "sums", p->sums);
        batch->n++;
    }
}

uint64_t
kvp_stream_objects(const kvp_stream_t *s)
{
    return s->held.n;
}

void
kvp_event_payload(kvp_event_batch_t *batch, uint64_t now_ms, kvp_buf_t *out)
{
    msgpack_packer pk;

    msgpack_packer_init(&pk, out, append_bytes);
    msgpack_pack_array(&pk, 3);
    msgpack_pack_uint64(&pk, now_ms);
    msgpack_pack_array(&pk, batch->n);
    kvp_buf_append(out, batch->bytes.data, batch->bytes.len);
    msgpack_pack_uint8(&pk, 0);
    if (batch->bytes.err != KVP_OK || out->err != KVP_OK) kvp_panic("out of memory: events");
    kvp_buf_reset(&batch->bytes);
    batch->n = 0;
}

/* ---- lifetime */
kvp_stream_t *
kvp_stream_create(const char *backend, bool is_legacy, uint64_t seed)
{
    kvp_stream_t *s = calloc(1, sizeof *s);

    if (s == NULL) return NULL;
    s->backend = backend;
    s->is_legacy = is_legacy;
    kvp_digestmap_init(&s->held, seed);
    return s;
}

void
kvp_stream_reset(kvp_stream_t *s)
{
    kvp_digestmap_fini(&s->held);
    for (uint32_t i = 0; i < s->prefixes_n; i++)
        free(s->prefixes[i].prefix);
    s->prefixes_n = s->tenants_n = 0;
}

void
kvp_stream_destroy(kvp_stream_t *s)
{
    if (s == NULL) return;
    kvp_stream_reset(s);
    free(s->tenants);
    free(s);
}
