/* SPDX-License-Identifier: Apache-2.0
 * The records of a master's log. Little-endian, naturally aligned, no padding, one behind the other; PROTOCOL "Journal". Each
 * record's check covers the one before as well, so that behind a place where a log was cut and written on, what is left of the
 * old bytes is not taken for its continuation.
 */
#ifndef KVP_PROTO_JREC_H
#define KVP_PROTO_JREC_H

#include "common/hash.h"
#include "proto/wire.h"

#define KVP_JOURNAL_MAGIC 0x32304c524a50564bull /* "KVPJRL02" */
#define KVP_JREC_MAX 2048u /* bytes of a record, of kinds to come too */

typedef enum {
    KVP_JREC_BASE = 1, /* kvp_jrec_term_t: what follows, up to WHOLE, says all that is true there */
    KVP_JREC_WHOLE = 2, /* kvp_jrec_t */
    KVP_JREC_TERM = 3, /* kvp_jrec_term_t: another master goes on */
    KVP_JREC_COMMIT = 4, /* kvp_jrec_commit_t: that version is committed and lies there, and nothing else of its key */
    KVP_JREC_GONE = 5, /* kvp_jrec_gone_t: no version up to that one is */
    KVP_JREC_TENANT = 6, /* kvp_jrec_tenant_t: its name, and its bumps */
    KVP_JREC_SEGMENT = 7, /* kvp_jrec_segment_t: places name it by its number from here on */
    KVP_JREC_SEGMENT_OVER = 8, /* kvp_jrec_over_t: nothing lies there any more */
    KVP_JREC_OLDEST = 9, /* kvp_jrec_oldest_t: below it nothing is unknown */
} kvp_jrec_kind_t;

/* Why a version is gone. */
typedef enum {
    KVP_GONE_REMOVED = 1,
    KVP_GONE_SUPERSEDED = 2,
    KVP_GONE_EVICTED = 3,
    KVP_GONE_LOST = 4, /* with its memory */
} kvp_gone_t;

typedef struct {
    uint64_t check; /* sum of the record, with the check of the one before in this place; of BASE: 0 there */
    uint32_t bytes; /* of the whole record; a multiple of 8 */
    uint32_t kind;
} kvp_jrec_t;

typedef struct {
    kvp_jrec_t head;
    uint64_t magic;
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term;
    uint32_t is_anew; /* BASE: nothing that was said before it counts any more, even without a WHOLE */
} kvp_jrec_term_t;

#define KVP_JREC_TIER UINT32_MAX /* in `chunk` */
#define KVP_JREC_PLACES_MAX (KVP_REPLICAS_MAX + 1u)

/* Where a copy lies. One on a tier, the last where there are others: generation is the version, chunk KVP_JREC_TIER, the rest 0. */
typedef struct {
    uint64_t generation;
    uint64_t offset; /* of its payload in the chunk */
    uint32_t segment; /* number of a SEGMENT */
    uint32_t chunk;
    uint32_t slot;
    uint32_t key_off; /* as in descriptors */
} kvp_jrec_place_t;

#define KVP_JREC_PIN 0x03u /* in flags of a COMMIT: kvp_pin_t */
#define KVP_JREC_LINEAGE 0x04u /* and that it has a lineage */

/* Behind it: places_n kvp_jrec_place_t, with KVP_JREC_LINEAGE a kvp_wire_lineage_t that is told, the key's bytes, and zeroes up to
 * a multiple of 8. */
typedef struct {
    kvp_jrec_t head;
    kvp_digest_t digest;
    uint64_t version;
    uint64_t sum; /* 0 = none */
    uint64_t len; /* payload bytes */
    kvp_wire_group_t group; /* digest 0 = none */
    uint32_t tenant;
    uint16_t key_len;
    uint8_t flags; /* KVP_JREC_*; the others 0 */
    uint8_t places_n;
} kvp_jrec_commit_t;

/* Behind it, where the key is told: with KVP_JREC_LINEAGE a kvp_wire_lineage_t, the key's bytes, and zeroes up to a multiple of 8. */
typedef struct {
    kvp_jrec_t head;
    kvp_digest_t digest;
    uint64_t version;
    uint32_t why; /* kvp_gone_t */
    uint16_t key_len; /* 0 = the key is not told */
    uint16_t flags; /* KVP_JREC_LINEAGE */
} kvp_jrec_gone_t;

typedef struct {
    kvp_jrec_t head;
    uint32_t tenant;
    uint32_t epoch;
    uint64_t min_version; /* nothing of it is that has a version up to that one; 0 = it was not bumped */
    char name[136]; /* at most KVP_TENANT_NAME_MAX bytes, then zeroes; empty = the default one's, or unknown */
} kvp_jrec_tenant_t;

typedef struct {
    kvp_jrec_t head;
    uint64_t epoch;
    uint64_t size_bytes;
    uint64_t chunk_bytes; /* 0 = an SSD tier */
    uint8_t uuid[16];
    uint32_t number;
    uint32_t mounted_term; /* in which it was mounted last */
    char name[136]; /* these two: at most KVP_NAME_MAX bytes, then zeroes */
    char host_id[136];
} kvp_jrec_segment_t;

typedef struct {
    kvp_jrec_t head;
    uint32_t number;
    uint32_t reserved; /* 0 */
} kvp_jrec_over_t;

/* Puts of lower generations are committed or over, and the log says which: whose end is missing, it knows all of these. */
typedef struct {
    kvp_jrec_t head;
    uint64_t generation;
} kvp_jrec_oldest_t;

typedef union {
    kvp_jrec_t head;
    kvp_jrec_term_t term; /* BASE, TERM */
    kvp_jrec_commit_t commit;
    kvp_jrec_gone_t gone;
    kvp_jrec_tenant_t tenant;
    kvp_jrec_segment_t segment;
    kvp_jrec_over_t over;
    kvp_jrec_oldest_t oldest;
    uint8_t bytes[KVP_JREC_MAX];
} kvp_jrec_any_t;

_Static_assert(sizeof(kvp_jrec_term_t) == 56 && sizeof(kvp_jrec_commit_t) == 88 && sizeof(kvp_jrec_place_t) == 32 &&
                   sizeof(kvp_jrec_gone_t) == 48 && sizeof(kvp_jrec_tenant_t) == 168 && sizeof(kvp_jrec_over_t) == 24 &&
                   sizeof(kvp_jrec_oldest_t) == 24 && sizeof(kvp_jrec_segment_t) == 336,
               "records of a log are a format");

/* kvp_jrec_seal completes a record of that kind, whose body is there; before is the check of the record before it.
 * Returns its own. */
uint64_t kvp_jrec_seal(kvp_jrec_any_t *rec, kvp_jrec_kind_t kind, uint64_t before);

/* kvp_jrec_read takes the record that begins at bytes, which come from anywhere and need no alignment; of rec_out only
 * head.bytes are written. OK with *used_out 0: it is longer than what is there. CORRUPT: it is none, or not the one that follows.
 * VERSION: it is sound, and of a kind that this version does not know. */
kvp_err_t kvp_jrec_read(const void *bytes, size_t len, uint64_t before, kvp_jrec_any_t *rec_out, size_t *used_out)
    KVP_MUST_USE;

/* What lies behind a COMMIT, inside it: its places, its lineage (NULL = none), and its key. */
static inline kvp_jrec_place_t *
kvp_jrec_places(kvp_jrec_any_t *rec)
{
    return (kvp_jrec_place_t *)(rec->bytes + sizeof rec->commit);
}
static inline kvp_wire_lineage_t *
kvp_jrec_lineage(kvp_jrec_any_t *rec)
{
    kvp_jrec_place_t *end = kvp_jrec_places(rec) + rec->commit.places_n;

    return (rec->commit.flags & KVP_JREC_LINEAGE) != 0 ? (kvp_wire_lineage_t *)end : NULL;
}
static inline uint8_t *
kvp_jrec_key(kvp_jrec_any_t *rec)
{
    kvp_wire_lineage_t *lineage = kvp_jrec_lineage(rec);

    return lineage != NULL ? (uint8_t *)(lineage + 1) : (uint8_t *)(kvp_jrec_places(rec) + rec->commit.places_n);
}

/* The same of a GONE that tells the key. */
static inline kvp_wire_lineage_t *
kvp_jrec_gone_lineage(kvp_jrec_any_t *rec)
{
    return (rec->gone.flags & KVP_JREC_LINEAGE) != 0 ? (kvp_wire_lineage_t *)(rec->bytes + sizeof rec->gone) : NULL;
}
static inline uint8_t *
kvp_jrec_gone_key(kvp_jrec_any_t *rec)
{
    kvp_wire_lineage_t *lineage = kvp_jrec_gone_lineage(rec);

    return lineage != NULL ? (uint8_t *)(lineage + 1) : rec->bytes + sizeof rec->gone;
}

#endif
