/* SPDX-License-Identifier: Apache-2.0
 * See decode.h.
 *
 * Design notes.
 * - msgpack-c allocates an array by the count in its header, before it reads the elements: 5 bytes could allocate
 *   2^32 elements. So is_sound first checks the counts, which takes a tenth of the time of decoding. */
#include "conductor/events/decode.h"

#include "conductor/index/index.h"

#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 8u

typedef msgpack_object object_t;

/* ---- a check of the payload's structure before decoding */
/* Reads the header of a msgpack object. After the header follow `skip` bytes of data and `more` nested objects.
 * Returns the length of the header; 0 = malformed. */
static size_t
read_header(const uint8_t *at, size_t left, uint64_t *skip_out, uint64_t *more_out)
{
    /* lengths of msgpack's floats and integers in bytes, for the types 0xca to 0xd3 */
    static const uint8_t ints[] = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8};
    const uint8_t c = at[0];
    size_t width = 0;
    uint64_t value = 0;

    *skip_out = *more_out = 0;
    if (c < 0x80 || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3) return 1;
    if (c < 0x90)
        *more_out = 2 * (c & 15u);
    else if (c < 0xa0)
        *more_out = c & 15u;
    else if (c < 0xc0)
        *skip_out = c & 31u;
    else if (c >= 0xca && c <= 0xd3)
        *skip_out = ints[c - 0xca];
    else if (c >= 0xc4 && c <= 0xc6)
        width = 1u << (c - 0xc4);
    else if (c >= 0xd9 && c <= 0xdb)
        width = 1u << (c - 0xd9);
    else if (c >= 0xdc && c <= 0xdf)
        width = 2u << ((c - 0xdc) & 1);
    else
        return 0; /* msgpack extension types, which events never use */
    if (left < 1 + width) return 0;
    for (size_t i = 0; i < width; i++)
        value = value << 8 | at[1 + i];
    if (c >= 0xdc && width > 0)
        *more_out = c >= 0xde ? 2 * value : value;
    else
        *skip_out += value;
    return 1 + width;
}

/* Returns true if the payload is one complete object, with no more nested objects than bytes and with limited depth. */
static bool
is_sound(const uint8_t *at, size_t len)
{
    uint64_t more[DEPTH_MAX] = {1};
    size_t depth = 0;

    for (;;) {
        uint64_t skip, inside;
        size_t n;

        while (more[depth] == 0) {
            if (depth-- == 0) return len == 0;
        }
        more[depth]--;
        if (len == 0 || (n = read_header(at, len, &skip, &inside)) == 0) return false;
        if (skip > len - n || inside > len - n) return false;
        at += n + skip;
        len -= n + skip;
        if (inside == 0) continue;
        if (++depth == DEPTH_MAX) return false;
        more[depth] = inside;
    }
}

/* ---- fields of an event by name and by position */
enum {
    F_TYPE,
    F_BLOCK_HASHES,
    F_PARENT_BLOCK_HASH,
    F_TOKEN_IDS,
    F_BLOCK_SIZE,
    F_LORA_ID,
    F_MEDIUM,
    F_LORA_NAME,
    F_EXTRA_KEYS,
    F_GROUP_IDX,
    F_KV_CACHE_SPEC_KIND,
    F_EVENT_TYPE,
    F_EVENT_ID,
    F_MODEL_NAME,
    F_ADDITIONAL_SALT,
    F_TENANT_ID,
    F_BACKEND_ID,
    F_DP_RANK,
    F_SEQ_HASHES,
    F_BASE_BLOCK_IDX,
    F_PARENT_HASH,
    F_OBJECT_KEY,
    F_KEY_PREFIX,
    F_COUNTS,
    F_SUMS,
    F_CACHE_SALT,
    F_METADATA,
    FIELDS,
};

static const char *const names[FIELDS] = {
    "type",       "block_hashes",   "parent_block_hash", "token_ids",  "block_size",         "lora_id",
    "medium",     "lora_name",      "extra_keys",        "group_idx",  "kv_cache_spec_kind", "event_type",
    "event_id",   "model_name",     "additional_salt",   "tenant_id",  "backend_id",         "dp_rank",
    "seq_hashes", "base_block_idx", "parent_hash",       "object_key", "key_prefix",         "counts",
    "sums",       "cache_salt",     "metadata",
};

typedef const object_t *fields_t[FIELDS]; /* the fields of an event; NULL = absent or null */

static bool
is_text(const object_t *o, const char *text)
{
    return o != NULL && o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) &&
           memcmp(o->via.str.ptr, text, o->via.str.size) == 0;
}

static void
put_field(fields_t fields, uint32_t i, const object_t *o)
{
    if (o->type != MSGPACK_OBJECT_NIL) fields[i] = o;
}

static void
fields_of_map(const msgpack_object_map *map, fields_t fields)
{
    for (uint32_t i = 0; i < map->size; i++)
        for (uint32_t f = 0; f < FIELDS; f++)
            if (is_text(&map->ptr[i].key, names[f])) {
                put_field(fields, f, &map->ptr[i].val);
                break;
            }
}

/* Takes over the salt from SGLang's metadata map, which holds fields without a position in the array. If the event
 * has two different salts, the field becomes a non-text, so that the event is refused. */
static void
fields_of_metadata(const object_t *o, fields_t fields)
{
    const object_t *const before = fields[F_CACHE_SALT];
    fields_t inside = {NULL};

    fields_of_map(&o->via.map, inside);
    if (inside[F_CACHE_SALT] == NULL) return;
    fields[F_CACHE_SALT] =
        before == NULL || msgpack_object_equal(*before, *inside[F_CACHE_SALT]) ? inside[F_CACHE_SALT] : o;
}

/* Reads the fields of an event in the form of an array: first the tag, then the fields in the order of vLLM's
 * classes. The last fields may be omitted. SGLang's arrays also have a map, after the medium or at the end. */
static void
fields_of_array(const msgpack_object_array *array, fields_t fields)
{
    static const uint8_t removed[] = {F_TYPE, F_BLOCK_HASHES, F_MEDIUM, F_GROUP_IDX};
    const bool is_stored = is_text(&array->ptr[0], "BlockStored");

    for (uint32_t i = 0; i < array->size; i++) {
        if (is_stored && i > F_MEDIUM && array->ptr[i].type == MSGPACK_OBJECT_MAP)
            fields_of_metadata(&array->ptr[i], fields);
        else if (is_stored && i <= F_KV_CACHE_SPEC_KIND)
            put_field(fields, i, &array->ptr[i]);
        if (!is_stored && i < sizeof removed) put_field(fields, removed[i], &array->ptr[i]);
    }
}

/* ---- reading values of fields */
static bool
read_text(const object_t *o, kvp_text_t *out)
{
    *out = (kvp_text_t){NULL, 0};
    if (o == NULL) return true;
    if (o->type != MSGPACK_OBJECT_STR || memchr(o->via.str.ptr, '\0', o->via.str.size) != NULL) return false;
    *out = (kvp_text_t){o->via.str.ptr, o->via.str.size};
    return true;
}

static bool
read_u32(const object_t *o, uint32_t *out)
{
    if (o == NULL) return true;
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER || o->via.u64 > UINT32_MAX) return false;
    *out = (uint32_t)o->via.u64;
    return true;
}

/* Reads a hash: an integer, possibly negative (mod 2^64), or the bytes of a longer hash. Of these the last eight
 * bytes count, because vLLM itself shortens hashes in this way. */
static bool
read_hash(const object_t *o, uint64_t *out)
{
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER || o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        *out = o->via.u64;
        return true;
    }
    if (o->type != MSGPACK_OBJECT_BIN || o->via.bin.size < 8) return false;
    *out = 0;
    for (uint32_t i = o->via.bin.size - 8; i < o->via.bin.size; i++)
        *out = *out << 8 | (uint8_t)o->via.bin.ptr[i];
    return true;
}

static bool
add_hashes(kvp_decoder_t *d, const object_t *o, kvp_event_t *ev)
{
    if (o == NULL || o->type != MSGPACK_OBJECT_ARRAY) return false;
    for (uint32_t i = 0; i < o->via.array.size; i++) {
        uint64_t hash;

        if (!read_hash(&o->via.array.ptr[i], &hash)) return false;
        kvp_buf_append(&d->hashes, &hash, sizeof hash);
    }
    ev->hashes = (const uint64_t *)d->hashes.data;
    ev->n += o->via.array.size;
    return d->hashes.err == KVP_OK;
}

static bool
read_hashes(kvp_decoder_t *d, const object_t *o, kvp_event_t *ev)
{
    kvp_buf_reset(&d->hashes);
    ev->n = 0;
    return add_hashes(d, o, ev);
}

static bool
read_tokens(kvp_decoder_t *d, const object_t *o, kvp_event_t *ev, kvp_skip_t *why)
{
    uint32_t *to;

    if (o == NULL) return true;
    kvp_buf_reset(&d->tokens);
    if (o->type != MSGPACK_OBJECT_ARRAY) return false;
    to = (uint32_t *)kvp_buf_reserve(&d->tokens, (o->via.array.size + 1) * sizeof *to);
    if (to == NULL) return false;
    for (uint32_t i = 0; i < o->via.array.size; i++) {
        const object_t *t = &o->via.array.ptr[i];

        if (t->type == MSGPACK_OBJECT_ARRAY) *why = KVP_SKIP_bigram;
        if (t->type != MSGPACK_OBJECT_POSITIVE_INTEGER || t->via.u64 > UINT32_MAX) return false;
        to[i] = (uint32_t)t->via.u64;
    }
    ev->tokens = to;
    ev->tokens_n = o->via.array.size;
    return true;
}

static bool
is_same_text(kvp_text_t a, kvp_text_t b)
{
    return a.at != NULL && b.at != NULL && a.len == b.len && memcmp(a.at, b.at, a.len) == 0;
}

/* Sets the salt of the event. An empty salt means no salt. Returns false if the event already has another salt. */
static bool
add_salt(kvp_event_t *ev, kvp_text_t salt, kvp_skip_t *why)
{
    if (salt.len == 0 || is_same_text(salt, ev->salt)) return true;
    *why = KVP_SKIP_salt;
    if (ev->salt.at != NULL) return false;
    ev->salt = salt;
    return true;
}

/* Reads an extra key of block i: the adapter's name, a salt, or another input such as an image. In the first block
 * of a prompt, the first text that is not the adapter's name counts as a salt even without KVP_SALT_TAG. */
static bool
read_extra_key(const object_t *key, uint32_t i, kvp_event_t *ev, kvp_skip_t *why)
{
    static const size_t tag = sizeof KVP_SALT_TAG - 1;
    kvp_text_t text;

    if (key->type != MSGPACK_OBJECT_STR || !read_text(key, &text)) {
        ev->outside_from = i;
        return true;
    }
    if (is_same_text(text, ev->lora)) return true;
    if (text.len > tag && memcmp(text.at, KVP_SALT_TAG, tag) == 0)
        return add_salt(ev, (kvp_text_t){text.at + tag, text.len - tag}, why);
    if (is_same_text(text, ev->salt)) return true;
    if (i == 0 && !ev->has_parent && ev->salt.at == NULL) return add_salt(ev, text, why);
    ev->outside_from = i;
    return true;
}

/* Reads the lists of extra keys, one list for each block. SGLang merges events of single blocks and keeps only the
 * list of the first block. Such an event is malformed if its list has no salt, or has keys for other inputs. */
static bool
read_extra_keys(const object_t *o, kvp_event_t *ev, kvp_skip_t *why)
{
    ev->outside_from = ev->n;
    if (o == NULL) return true;
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size > ev->n) return false;
    ev->tells_salt = true;
    for (uint32_t i = 0; i < o->via.array.size && ev->outside_from == ev->n; i++) {
        const object_t *keys = &o->via.array.ptr[i];

        if (keys->type == MSGPACK_OBJECT_NIL) continue;
        if (keys->type != MSGPACK_OBJECT_ARRAY) return false;
        for (uint32_t k = 0; k < keys->via.array.size; k++)
            if (!read_extra_key(&keys->via.array.ptr[k], i, ev, why)) return false;
    }
    return o->via.array.size == ev->n || (ev->salt.at != NULL && ev->outside_from == ev->n);
}

/* Reads the salt from the event's own field for it, or from the metadata map. */
static bool
read_salt(fields_t f, kvp_event_t *ev, kvp_skip_t *why)
{
    kvp_text_t salt;

    if (f[F_METADATA] != NULL && f[F_METADATA]->type == MSGPACK_OBJECT_MAP) fields_of_metadata(f[F_METADATA], f);
    ev->tells_salt = f[F_CACHE_SALT] != NULL;
    return read_text(f[F_CACHE_SALT], &salt) && add_salt(ev, salt, why);
}

/* ---- decoding of whole events */
static bool
read_engine_event(kvp_decoder_t *d, fields_t f, kvp_event_t *ev, char lora_id[24], kvp_skip_t *why)
{
    *why = KVP_SKIP_malformed;
    if (is_text(f[F_TYPE], "AllBlocksCleared")) {
        ev->kind = KVP_EVENT_CLEARED;
        return true;
    }
    if (is_text(f[F_TYPE], "BlockRemoved")) {
        ev->kind = KVP_EVENT_REMOVED;
    } else if (is_text(f[F_TYPE], "BlockStored")) {
        ev->kind = KVP_EVENT_STORED;
    } else {
        *why = KVP_SKIP_unknown_type;
        return false;
    }
    if (!read_hashes(d, f[F_BLOCK_HASHES], ev) || !read_text(f[F_MEDIUM], &ev->medium) ||
        !read_u32(f[F_GROUP_IDX], &ev->group))
        return false;
    if (ev->kind == KVP_EVENT_REMOVED) return true;
    if (f[F_PARENT_BLOCK_HASH] != NULL) {
        ev->has_parent = true;
        if (!read_hash(f[F_PARENT_BLOCK_HASH], &ev->parent)) return false;
    }
    if (!read_text(f[F_LORA_NAME], &ev->lora)) return false;
    if (ev->lora.at == NULL && f[F_LORA_ID] != NULL && f[F_LORA_ID]->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        const int len = snprintf(lora_id, 24, "%llu", (unsigned long long)f[F_LORA_ID]->via.u64);

        ev->lora = (kvp_text_t){lora_id, (size_t)len};
    }
    return read_u32(f[F_BLOCK_SIZE], &ev->block_size) && read_text(f[F_KV_CACHE_SPEC_KIND], &ev->spec_kind) &&
           read_tokens(d, f[F_TOKEN_IDS], ev, why) && read_salt(f, ev, why) &&
           read_extra_keys(f[F_EXTRA_KEYS], ev, why);
}

static bool
read_standard_event(kvp_decoder_t *d, fields_t f, kvp_event_t *ev, kvp_skip_t *why)
{
    ev->is_standard = true;
    *why = KVP_SKIP_malformed;
    if (f[F_EVENT_ID] == NULL || f[F_EVENT_ID]->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return false;
    ev->event_id = f[F_EVENT_ID]->via.u64;
    ev->has_rank = f[F_DP_RANK] != NULL;
    if (!read_text(f[F_MODEL_NAME], &ev->model) || !read_text(f[F_ADDITIONAL_SALT], &ev->additional_salt) ||
        !read_text(f[F_LORA_NAME], &ev->lora) || !read_text(f[F_TENANT_ID], &ev->tenant) ||
        !read_text(f[F_BACKEND_ID], &ev->backend) || !read_text(f[F_MEDIUM], &ev->medium) ||
        !read_u32(f[F_BLOCK_SIZE], &ev->block_size) || !read_u32(f[F_DP_RANK], &ev->dp_rank))
        return false;
    if (is_text(f[F_EVENT_TYPE], "cleared")) {
        ev->kind = KVP_EVENT_CLEARED;
        return true;
    }
    if (is_text(f[F_EVENT_TYPE], "digest")) {
        ev->kind = KVP_EVENT_DIGEST;
        return read_hashes(d, f[F_COUNTS], ev) && add_hashes(d, f[F_SUMS], ev) &&
               read_text(f[F_KEY_PREFIX], &ev->key_prefix) && f[F_COUNTS]->via.array.size == f[F_SUMS]->via.array.size;
    }
    if (!is_text(f[F_EVENT_TYPE], "stored") && !is_text(f[F_EVENT_TYPE], "removed")) {
        *why = KVP_SKIP_unknown_type;
        return false;
    }
    ev->kind = is_text(f[F_EVENT_TYPE], "stored") ? KVP_EVENT_STORED : KVP_EVENT_REMOVED;
    if (!read_hashes(d, f[F_SEQ_HASHES], ev) || !read_text(f[F_OBJECT_KEY], &ev->object_key)) return false;
    ev->outside_from = ev->n;
    ev->base = KVP_DEPTH_UNKNOWN;
    if (f[F_PARENT_HASH] != NULL) {
        ev->has_parent = true;
        if (!read_hash(f[F_PARENT_HASH], &ev->parent)) return false;
    }
    if (ev->kind == KVP_EVENT_STORED && f[F_BASE_BLOCK_IDX] == NULL && !ev->has_parent && ev->object_key.at == NULL)
        return false;
    return read_u32(f[F_BASE_BLOCK_IDX], &ev->base) && (f[F_BASE_BLOCK_IDX] == NULL || ev->base < UINT32_MAX - ev->n) &&
           read_tokens(d, f[F_TOKEN_IDS], ev, why);
}

static void
read_event(kvp_decoder_t *d, const object_t *o, const kvp_decode_ops_t *ops)
{
    kvp_skip_t why = KVP_SKIP_malformed;
    fields_t fields = {NULL};
    kvp_event_t ev = {.kind = KVP_EVENT_CLEARED};
    char lora_id[24];
    bool is_good = false;

    if (o->type == MSGPACK_OBJECT_MAP)
        fields_of_map(&o->via.map, fields);
    else if (o->type == MSGPACK_OBJECT_ARRAY && o->via.array.size > 0)
        fields_of_array(&o->via.array, fields);
    if (fields[F_EVENT_TYPE] != NULL)
        is_good = read_standard_event(d, fields, &ev, &why);
    else if (fields[F_TYPE] != NULL)
        is_good = read_engine_event(d, fields, &ev, lora_id, &why);
    if (is_good)
        ops->on_event(ops->arg, &ev);
    else
        ops->on_skip(ops->arg, why);
}

bool
kvp_decode(kvp_decoder_t *d, const void *payload, size_t len, const kvp_decode_ops_t *ops, uint32_t *rank_out)
{
    const object_t *top;
    msgpack_unpacked unpacked;
    bool is_good = false;
    size_t off = 0;

    *rank_out = UINT32_MAX;
    if (len > KVP_PAYLOAD_MAX || !is_sound(payload, len)) return false;
    msgpack_unpacked_init(&unpacked);
    if (msgpack_unpack_next(&unpacked, payload, len, &off) == MSGPACK_UNPACK_SUCCESS) {
        top = &unpacked.data;
        is_good = top->type == MSGPACK_OBJECT_ARRAY && top->via.array.size >= 2 &&
                  top->via.array.ptr[1].type == MSGPACK_OBJECT_ARRAY;
        if (is_good && top->via.array.size > 2 && top->via.array.ptr[2].type == MSGPACK_OBJECT_POSITIVE_INTEGER)
            *rank_out = (uint32_t)kvp_min_u64(top->via.array.ptr[2].via.u64, UINT32_MAX);
        for (uint32_t i = 0; is_good && i < top->via.array.ptr[1].via.array.size; i++)
            read_event(d, &top->via.array.ptr[1].via.array.ptr[i], ops);
    }
    msgpack_unpacked_destroy(&unpacked);
    return is_good;
}

void
kvp_decoder_init(kvp_decoder_t *d)
{
    kvp_buf_init(&d->hashes, 0);
    kvp_buf_init(&d->tokens, 0);
}

void
kvp_decoder_fini(kvp_decoder_t *d)
{
    kvp_buf_fini(&d->hashes);
    kvp_buf_fini(&d->tokens);
}
